"""Checks of `rljob doctor RUN`: whether the files of a run's folder are intact."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from rljob_api.check.load import load_job
from rljob_api.spec.json_text import parse_json
from rljob_api.spec.problems import InvalidJob
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, findings_of, ok, warn
from rljob_runtime.errors import CheckpointError
from rljob_runtime.record.best import BEST_FILE, stored_best
from rljob_runtime.record.checkpoint import STATE_FILE, CheckpointStore, read_state, step_of
from rljob_runtime.record.checksums import check_files
from rljob_runtime.record.remote import EVENTS_NAME

SPEC_NAME = "rljob.yaml"


class AnyObject(msgspec.Struct):
    """A JSON object of which no field is read."""


def examine_run(folder: Path) -> list[Finding]:
    """Return all findings about a run's folder or a checkpoint."""
    checks = {"spec": _spec, "events": _events, "checkpoints": _checkpoints, "best": _best}
    return findings_of({name: partial(check, folder) for name, check in checks.items()})


def is_run(folder: Path) -> bool:
    """Return whether the folder contains a run or a checkpoint."""
    files = [folder / SPEC_NAME, folder / EVENTS_NAME, folder / STATE_FILE]
    return any(file.exists() for file in files)


def _spec(folder: Path) -> Iterator[Finding]:
    file = folder / SPEC_NAME
    if not file.exists():
        raise Skip(f"{file} is not there")
    try:
        yield ok(f"{load_job(file).metadata.name} is a valid job")
    except InvalidJob as invalid:
        remedy = f"resume with the job's own file; its first run wrote {SPEC_NAME}"
        yield fail(f"{file}: {invalid.problems[0]}", remedy)


def _events(folder: Path) -> Iterator[Finding]:
    file = folder / EVENTS_NAME
    if not file.exists():
        raise Skip(f"{file} is not there")
    events, torn = 0, list[int]()
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                events += _is_object(line)
            except ValueError:
                torn.append(number)
    yield ok(f"{events} events in {file.stat().st_size / 1e6:.1f} MB")
    if torn:
        line_numbers = ", ".join(map(str, torn[:8]))
        remedy = "none is needed: a writer that was killed leaves one, and readers pass it over"
        yield warn(f"{len(torn)} lines are torn (line {line_numbers})", remedy)


def _is_object(line: bytes) -> bool:
    """Return whether the line is a JSON object. Raises ValueError for invalid JSON. msgspec is ten times
    faster than `parse_json`, and stricter."""
    try:
        msgspec.json.decode(line, type=AnyObject)
    except (msgspec.MsgspecError, RecursionError):
        return isinstance(parse_json(line), dict)
    return True


def _checkpoints(folder: Path) -> Iterator[Finding]:
    """Check that every checkpoint is intact; `folder` may be a checkpoint."""
    candidates = (
        [folder] if step_of(folder.name) is not None else sorted(folder.glob("checkpoints/*step-*"))
    )
    checkpoints = [
        checkpoint
        for checkpoint in candidates
        if checkpoint.is_dir() and not checkpoint.name.startswith(".")
    ]
    if not checkpoints:
        raise Skip("nothing was saved")
    for checkpoint in checkpoints:
        if step_of(checkpoint.name) is None:
            yield warn(
                f"{checkpoint.name} was moved aside by a run that found it damaged",
                f"remove {checkpoint}",
            )
            continue
        try:
            state, files = read_state(checkpoint), check_files(checkpoint)
        except CheckpointError as error:
            yield fail(
                str(error),
                f"rljob run --resume goes on from the one before; or remove {checkpoint}",
            )
            continue
        size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file()) / 1e6
        if files:
            yield ok(f"step {state.step}: {files} files, {size:.1f} MB, as they were written")
        else:
            yield warn(
                f"step {state.step}: {size:.1f} MB without checksums",
                "none: it is of an older version",
            )


def _best(folder: Path) -> Iterator[Finding]:
    file = folder / "checkpoints" / BEST_FILE
    if not file.exists():
        raise Skip("no evaluation was counted")
    try:
        best = stored_best(file.parent)
    except CheckpointError as error:
        yield fail(str(error), f"remove {file}")
        return
    step = best.step if best else None
    store = CheckpointStore(folder=file.parent, keep=1)
    exists = step is not None and store.path(step).is_dir()
    yield ok(f"after step {step}" + ("" if exists else ", whose checkpoint was not kept"))
