"""The file in a run's folder that names the driver process while it lives.

`rljob stacks` reads it to signal the process, and `rljob watch` to detect that the process was killed.
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
class DriverProcess:
    """The driver's process id, start time (unix seconds) and host, as the driver wrote them."""

    pid: Annotated[int, Field(gt=0, lt=2**31)]
    started: float
    host: str


DRIVER_PROCESS = TypeAdapter(DriverProcess)


@contextlib.contextmanager
def naming_driver(folder: Path) -> Iterator[None]:
    """Keep a file in the folder that names this process as the run's driver, while the block runs."""
    process, file = psutil.Process(), folder / DRIVER_NAME
    content = {"pid": process.pid, "started": start_of(process), "host": socket.gethostname()}
    with contextlib.suppress(OSError):  # without the file, `rljob stacks` cannot find the driver
        file.write_text(json.dumps(content))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the volume may be read-only by now
            file.unlink(missing_ok=True)


def killed_driver_pid(folder: Path, *, since: float) -> int | None:
    """Return the id of the folder's driver if it was killed on this machine, otherwise None.

    since: unix seconds. A file that was written earlier belongs to an earlier attempt and is ignored.
    """
    try:
        driver = read_driver(folder)
        if (folder / DRIVER_NAME).stat().st_mtime < since:
            return None
    except (OSError, ValueError):
        return None
    is_killed = (
        driver.host == socket.gethostname() and running_process(driver.pid, driver.started) is None
    )
    return driver.pid if is_killed else None


def read_driver(folder: Path) -> DriverProcess:
    """Read the folder's driver file. Raises OSError, and ValueError if the file is damaged."""
    return DRIVER_PROCESS.validate_json(content_of(folder / DRIVER_NAME), strict=True)


def running_process(pid: int, started: float) -> psutil.Process | None:
    """Return the process that started at this time, if it is still running."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if is_same(process, started) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None
