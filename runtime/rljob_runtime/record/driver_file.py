"""Which process drives a run, said in the run's folder while it lives.

Written for `rljob stacks`, which signals it, and for `rljob watch`, which learns that it was killed.
"""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from rljob_runtime.children.process_start import is_same, start_of

DRIVER_NAME = "driver.json"


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
        pid, started, host = read_driver(folder)
        if (folder / DRIVER_NAME).stat().st_mtime < since:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if host == socket.gethostname() and living(pid, started) is None else None


def read_driver(folder: Path) -> tuple[int, float, str]:
    """Process, its start and host, as the driver wrote them.

    Raises OSError, ValueError, KeyError, TypeError where they cannot be read.
    """
    told = json.loads((folder / DRIVER_NAME).read_text())
    return int(told["pid"]), float(told["started"]), str(told["host"])


def living(pid: int, started: float) -> psutil.Process | None:
    """The process that started then, if it still runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if is_same(process, started) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None
