"""Which process drives a run, said in the run's folder while it lives.

Written for `rljob stacks`, which signals it, and for `rljob watch`, which learns that it was killed.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, TypeAdapter

from rljob_api.spec.json_text import content_of
from rljob_runtime.children.process_start import is_same, start_of

DRIVER_NAME = "driver.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverPlace:
    """Process, its start (unix seconds) and host, as the driver wrote them."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: float
    host: str


PLACE = TypeAdapter(DriverPlace)


@contextlib.contextmanager
def naming_driver(folder: Path) -> Iterator[None]:
    """Within, the folder says that this process drives its run."""
    own, file = psutil.Process(), folder / DRIVER_NAME
    place = {"pid": own.pid, "started": start_of(own), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # then nobody can ask by the folder's name
        file.write_text(json.dumps(place))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the volume may be read-only by now
            file.unlink(missing_ok=True)


def gone_driver(folder: Path, *, since: float) -> int | None:
    """The process that drove the folder's run on this machine and was killed; None where none is known.
    since: unix seconds; who wrote the file before that drove an earlier attempt."""
    try:
        place = read_driver(folder)
        if (folder / DRIVER_NAME).stat().st_mtime < since:
            return None
    except (OSError, ValueError):
        return None
    gone = place.host == socket.gethostname() and living(place.pid, place.started) is None
    return place.pid if gone else None


def read_driver(folder: Path) -> DriverPlace:
    """Where the folder's driver lives. Raises OSError, and ValueError for a file that is spoiled."""
    return PLACE.validate_json(content_of(folder / DRIVER_NAME), strict=True)


def living(pid: int, started: float) -> psutil.Process | None:
    """The process that started then, if it still runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if is_same(process, started) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None
