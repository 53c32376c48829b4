"""`rljob report NAME`: copy the files that the report needs from the head's pod into a local folder."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from rljob_api.spec.json_text import read_json
from rljob_runtime.cli.cluster.job_facts import Manifest, ending, phase, run_folder
from rljob_runtime.errors import ConfigError, NotThere
from rljob_runtime.record.event_types import ProfileEvent
from rljob_runtime.record.profiles.traces import NAME
from rljob_runtime.report.display.history import RunHistory

EVENTS, SPEC, ORIGIN = "events.jsonl", "rljob.yaml", "cluster.json"
"""ORIGIN: the RLJob as the cluster stores it; it marks a fetched folder and identifies its job."""
LIMIT_BYTES = 512 * 2**20

Read = Callable[[str], bytes]
"""Reads a file of the head by its path. Raises NotThere, ClusterError."""


def check_folder(job: Manifest, folder: Path) -> None:
    """Raise ConfigError where the folder contains another run, which must not be overwritten."""
    if not (folder / EVENTS).exists():
        return
    try:
        origin = read_json(folder / ORIGIN)["metadata"]["uid"]
    except (OSError, ValueError, KeyError, TypeError):
        origin = None
    if origin != job["metadata"]["uid"]:
        raise ConfigError(f"{folder} holds another run; name another folder with --output")


def fetch(job: Manifest, folder: Path, *, read: Read) -> None:
    """Fetch the run's files into the folder. Raises ConfigError without events, and what `read` raises."""
    check_folder(job, folder)
    source = run_folder(job)
    try:
        events = read(f"{source}/{EVENTS}")
    except NotThere:
        raise ConfigError(
            f"{job['metadata']['name']} has no events yet ({phase(job)}): {source}/{EVENTS} is not there"
            + ("; rljob logs tells why" if ending(job) else "")
        ) from None
    spec = read(f"{source}/{SPEC}")
    folder.mkdir(parents=True, exist_ok=True)
    origin = json.dumps(job, indent=2).encode()
    for name, content in ((ORIGIN, origin), (SPEC, spec), (EVENTS, events)):
        _write(folder / name, content)
    for trace in RunHistory.read(folder / EVENTS, tail_bytes=0).profiles:
        if _must_fetch(folder, trace):
            with contextlib.suppress(NotThere):
                _write(folder / trace.path, read(f"{source}/{trace.path}"))


def _must_fetch(folder: Path, trace: ProfileEvent) -> bool:
    """Return whether a trace that an event names must be fetched."""
    file = folder / trace.path
    is_trace = NAME.fullmatch(trace.path) is not None
    return is_trace and not (file.is_file() and file.stat().st_size == trace.bytes)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(content)
    draft.replace(file)
