"""`rljob report NAME`: bring what the report is made of from the head's pod into a folder here."""

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
"""ORIGIN: the RLJob as the cluster has it; tells that the folder was fetched, and from which job."""
LIMIT_BYTES = 512 * 2**20

Read = Callable[[str], bytes]
"""A file of the head, by its path. Raises NotThere, ClusterError."""


def check_folder(job: Manifest, folder: Path) -> None:
    """Raise ConfigError where the folder holds another run, which nobody asked to write over."""
    if not (folder / EVENTS).exists():
        return
    try:
        origin = read_json(folder / ORIGIN)["metadata"]["uid"]
    except (OSError, ValueError, KeyError, TypeError):
        origin = None
    if origin != job["metadata"]["uid"]:
        raise ConfigError(f"{folder} holds another run; name another folder with --output")


def fetch(job: Manifest, folder: Path, *, read: Read) -> None:
    """Fill the folder. Raises ConfigError without events, and what `read` raises."""
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
        if _lacks(folder, trace):
            with contextlib.suppress(NotThere):
                _write(folder / trace.path, read(f"{source}/{trace.path}"))


def _lacks(folder: Path, trace: ProfileEvent) -> bool:
    """Whether a trace that an event names is to be fetched."""
    file = folder / trace.path
    known = NAME.fullmatch(trace.path) is not None
    return known and not (file.is_file() and file.stat().st_size == trace.bytes)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.part")
    draft.write_bytes(content)
    draft.replace(file)
