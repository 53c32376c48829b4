"""What `rljob doctor RUN` looks at: whether the files of a run's folder are what was written."""

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


class Anything(msgspec.Struct):
    """An object, of which no field is read."""


def examine_run(folder: Path) -> list[Finding]:
    """All findings."""
    checks = {"spec": _spec, "events": _events, "checkpoints": _checkpoints, "best": _best}
    return findings_of({name: partial(check, folder) for name, check in checks.items()})


def is_run(folder: Path) -> bool:
    """Whether a run, or a checkpoint of one, lies there."""
    files = [folder / SPEC_NAME, folder / EVENTS_NAME, folder / STATE_FILE]
    return any(file.exists() for file in files)


def _spec(folder: Path) -> Iterator[Finding]:
    file = folder / SPEC_NAME
    if not file.exists():
        raise Skip(f"{file} is not there")
    try:
        yield ok(f"{load_job(file).metadata.name} is a valid job")
    except InvalidJob as invalid:
        again = f"resume with the job's own file; its first run wrote {SPEC_NAME}"
        yield fail(f"{file}: {invalid.problems[0]}", again)


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
        places = ", ".join(map(str, torn[:8]))
        remedy = "none is needed: a writer that was killed leaves one, and readers pass it over"
        yield warn(f"{len(torn)} lines are torn (line {places})", remedy)


def _is_object(line: bytes) -> bool:
    """Raises ValueError for what is no JSON. msgspec is ten times faster, and stricter."""
    try:
        msgspec.json.decode(line, type=Anything)
    except (msgspec.MsgspecError, RecursionError):
        return isinstance(parse_json(line), dict)
    return True


def _checkpoints(folder: Path) -> Iterator[Finding]:
    """Every checkpoint whole; `folder` may be one."""
    places = (
        [folder] if step_of(folder.name) is not None else sorted(folder.glob("checkpoints/*step-*"))
    )
    found = [place for place in places if place.is_dir() and not place.name.startswith(".")]
    if not found:
        raise Skip("nothing was saved")
    for place in found:
        if step_of(place.name) is None:
            yield warn(
                f"{place.name} was moved aside by a run that found it damaged", f"remove {place}"
            )
            continue
        try:
            state, files = read_state(place), check_files(place)
        except CheckpointError as error:
            yield fail(
                str(error), f"rljob run --resume goes on from the one before; or remove {place}"
            )
            continue
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1e6
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
        found = stored_best(file.parent)
    except CheckpointError as error:
        yield fail(str(error), f"remove {file}")
        return
    step = found.step if found else None
    store = CheckpointStore(folder=file.parent, keep=1)
    there = step is not None and store.path(step).is_dir()
    yield ok(f"after step {step}" + ("" if there else ", whose checkpoint was not kept"))
