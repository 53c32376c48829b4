"""The files that decide what a run learns, by what is in them: a run that goes on must find the same.

Called by `run_place`. The digests stand in the run's first event of each process (`run_started`).
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import RunStartedEvent
from rljob_runtime.record.events import events_in

SECTIONS = ("data", "evaluation", "rewards", "rollout")
"""Of the spec, whose paths are files of rows or of functions."""
MODELS = ("model", "teacher")
"""Whose paths are models' folders, of which the tokenizer decides what is learned."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
             "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")  # fmt: skip
READ_BYTES = 1 << 20


def inputs_of(job: ResolvedJob, base_dir: Path) -> dict[str, str]:
    """Return the digest (XXH3, 128 bits) of each file that the job names, and of the user's files that one of
    Python imports, by the place in the job and the path. Files that are not on this machine are left out."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    named = [
        *(place for name in SECTIONS for place in _paths(spec.get(name), f"spec.{name}")),
        *(
            (f"spec.{name}.path", f"{path}/{file}")
            for name in MODELS
            if (path := (spec.get(name) or {}).get("path"))
            for file in TOKENIZER
        ),
    ]
    return {
        f"{place} {each}": _digest(base_dir / each)
        for place, path in named
        if (base_dir / path).is_file()
        for each in (path, *imported_files(path, base_dir))
    }


def imported_files(path: str, base_dir: Path) -> list[str]:
    """Return the files that a Python file imports out of its own folder, and those that these import, without
    running any: paths like the file's own."""
    file = base_dir / path
    if file.suffix != ".py":
        return []
    found, left = {file}, [file]
    while left:
        for other in _imported(left.pop(), file.parent):
            if other not in found:
                found.add(other)
                left.append(other)
    below = sorted(other.relative_to(file.parent) for other in found - {file})
    return [str(Path(path).parent / other) for other in below]


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Files below the folder that this one's import statements may name, wherever they stand in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # told where it is imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            beside = file.parent.relative_to(folder).parts if node.level else ()
            package = [*beside[: len(beside) - node.level + 1], *(node.module or "").split(".")]
            names = [".".join(filter(None, [*package, alias.name])) for alias in node.names]
        else:
            continue
        for name in names:
            place = folder
            for part in name.split("."):
                place /= part
                for candidate in (place.with_name(f"{part}.py"), place / "__init__.py"):
                    if candidate.is_file():
                        yield candidate


def changed_inputs(events: Path, inputs: Mapping[str, str]) -> list[str]:
    """Return which of the inputs are not those of the run's last process, as its events tell."""
    earlier: Mapping[str, str] = {}
    if events.exists():
        with events.open("rb") as lines:
            for event in events_in(lines, brief=True):
                if isinstance(event, RunStartedEvent):
                    earlier = event.inputs
    return sorted(name for name in earlier.keys() & inputs.keys() if earlier[name] != inputs[name])


def check_inputs(changed: list[str], *, accepted: bool) -> None:
    """Raise ConfigError where inputs changed and the user has not accepted it."""
    if changed and not accepted:
        files = "; ".join(f"{path} ({place})" for place, path in (c.split(" ", 1) for c in changed))
        raise ConfigError(
            f"--resume: what the run began with has changed since: {files}; put the old files back, or go on "
            "with the new ones by --accept-changes"
        )


def _paths(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each `path` within a section, with its place."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _paths(item, f"{place}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "path" and isinstance(item, str):
                yield f"{place}.path", item
            else:
                yield from _paths(item, f"{place}.{key}")


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while block := opened.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
