"""The files that determine what a run learns, by their content: a resumed run must find the same.

`run_place` calls it. The first event of each process of a run (`run_started`) contains the digests.
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
"""Sections of the spec whose paths name files of rows or of functions."""
MODELS = ("model", "teacher")
"""Sections whose paths name model folders; the tokenizer in them affects what is learned."""
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
             "vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json")  # fmt: skip
READ_BYTES = 1 << 20


def inputs_of(job: ResolvedJob, base_dir: Path) -> dict[str, str]:
    """Return the digest (XXH3, 128 bits) of each file that the job names, and of the user's files that a
    Python file imports. Keys are the field in the job and the path. Files that are not on this machine are
    left out."""
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    fields_and_paths = [
        *(pair for name in SECTIONS for pair in _paths(spec.get(name), f"spec.{name}")),
        *(
            (f"spec.{name}.path", f"{path}/{file}")
            for name in MODELS
            if (path := (spec.get(name) or {}).get("path"))
            for file in TOKENIZER
        ),
    ]
    return {
        f"{field} {file_path}": _digest(base_dir / file_path)
        for field, path in fields_and_paths
        if (base_dir / path).is_file()
        for file_path in (path, *imported_files(path, base_dir))
    }


def imported_files(path: str, base_dir: Path) -> list[str]:
    """Return the files that a Python file imports from its own folder, and those that these import, without
    running any. Paths are relative as the file's own is."""
    file = base_dir / path
    if file.suffix != ".py":
        return []
    imported, unread = {file}, [file]
    while unread:
        for imported_file in _imported(unread.pop(), file.parent):
            if imported_file not in imported:
                imported.add(imported_file)
                unread.append(imported_file)
    relative_paths = sorted(
        imported_file.relative_to(file.parent) for imported_file in imported - {file}
    )
    return [str(Path(path).parent / imported_file) for imported_file in relative_paths]


def _imported(file: Path, folder: Path) -> Iterator[Path]:
    """Yield files below the folder that the import statements of this file may name, wherever they are in
    it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # reported where the file is imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package_parts = file.parent.relative_to(folder).parts if node.level else ()
            package = [
                *package_parts[: len(package_parts) - node.level + 1],
                *(node.module or "").split("."),
            ]
            names = [".".join(filter(None, [*package, alias.name])) for alias in node.names]
        else:
            continue
        for name in names:
            path = folder
            for module_part in name.split("."):
                path /= module_part
                for candidate in (path.with_name(f"{module_part}.py"), path / "__init__.py"):
                    if candidate.is_file():
                        yield candidate


def changed_inputs(events: Path, inputs: Mapping[str, str]) -> list[str]:
    """Return which inputs differ from those in the events of the run's last process."""
    earlier: Mapping[str, str] = {}
    if events.exists():
        with events.open("rb") as lines:
            for event in events_in(lines, brief=True):
                if isinstance(event, RunStartedEvent):
                    earlier = event.inputs
    return sorted(name for name in earlier.keys() & inputs.keys() if earlier[name] != inputs[name])


def check_inputs(changed: list[str], *, accepted: bool) -> None:
    """Raise ConfigError if inputs changed and the user has not accepted it."""
    if changed and not accepted:
        files = "; ".join(
            f"{file_path} ({job_field})"
            for job_field, file_path in (c.split(" ", 1) for c in changed)
        )
        raise ConfigError(
            f"--resume: what the run began with has changed since: {files}; put the old files back, or go on "
            "with the new ones by --accept-changes"
        )


def _paths(value: Any, field: str) -> Iterator[tuple[str, str]]:
    """Yield each `path` within a section, with its field."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _paths(item, f"{field}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "path" and isinstance(item, str):
                yield f"{field}.path", item
            else:
                yield from _paths(item, f"{field}.{key}")


def _digest(file: Path) -> str:
    digest = xxhash.xxh3_128()
    with file.open("rb") as opened:
        while block := opened.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
