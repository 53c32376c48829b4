"""`rljob stacks DIR`: let a living run write where it stands, and the run's side of it: SIGUSR1.

The signal reaches a thread of the driver's, so that a driver whose main thread is stuck answers, too.
In pods the same command runs in the head's container (`cluster.commands`).
"""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from rljob_runtime.errors import ConfigError, NoAnswer
from rljob_runtime.hangs.folders import ASKED, FOLDER, SUMMARY
from rljob_runtime.process_start import is_same, start_of

DRIVER_NAME = "driver.json"
"""Of a run that lives: its driver's process."""
SIGNAL = signal.SIGUSR1
PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.1

Dump = Callable[[str, str], object]
"""Of a stage and a reason, as `Hangs.dump`."""


@contextlib.contextmanager
def answering_requests(folder: Path, dump: Dump) -> Iterator[None]:
    """Within, SIGUSR1 to this process calls `dump` in a thread. folder: the run's. In the main thread."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    earlier = signal.signal(SIGNAL, lambda number, frame: None)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_answer, args=(ours, dump), name="hang-requests", daemon=True)
    thread.start()
    own = psutil.Process()
    place = {"pid": own.pid, "started": start_of(own), "host": socket.gethostname()}
    file = folder / DRIVER_NAME
    try:
        with contextlib.suppress(OSError):  # then nobody can ask by the folder's name
            file.write_text(json.dumps(place))
        yield
    finally:
        with contextlib.suppress(OSError):  # the volume may be read-only by now
            file.unlink(missing_ok=True)
        signal.set_wakeup_fd(before)
        signal.signal(SIGNAL, earlier)
        theirs.close()
        thread.join(PATIENCE_SECONDS)
        ours.close()


def _answer(ours: socket.socket, dump: Dump) -> None:
    """Until the other end is closed. Bytes are numbers of signals; many at once are one question."""
    while numbers := ours.recv(4096):
        if SIGNAL in numbers:
            dump(ASKED, "asked for")


def ask_run(folder: Path, *, seconds: float = PATIENCE_SECONDS) -> Path:
    """Let the run of a folder write where it stands now; where that is.

    Raises ConfigError where no run of the folder lives on this machine, NoAnswer after `seconds`.
    """
    driver = _driver(folder)
    before = _dumps(folder)
    driver.send_signal(SIGNAL)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if new := sorted(_dumps(folder) - before):
            return new[-1]
        time.sleep(LOOK_SECONDS)
    raise NoAnswer(
        f"{folder}: the driver, process {driver.pid}, wrote nothing within {seconds:g} s; it is "
        f"{driver.status()}"
    )


def gone_driver(folder: Path, *, since: float) -> int | None:
    """The process that drove the folder's run on this machine and was killed; None where none is known.
    since: unix seconds; who wrote the file before that drove an earlier attempt."""
    try:
        pid, started, host = _told(folder)
        if (folder / DRIVER_NAME).stat().st_mtime < since:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if host == socket.gethostname() and _living(pid, started) is None else None


def _driver(folder: Path) -> psutil.Process:
    try:
        pid, started, host = _told(folder)
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{folder}: no run lives there; {_left(folder)}name the folder of a run that runs now"
        ) from None
    if host != socket.gethostname():
        raise ConfigError(f"{folder}: its run lives on {host}; ask there")
    process = _living(pid, started)
    if process is None or pid == os.getpid():
        raise ConfigError(f"{folder}: its run has ended, killed; {_left(folder)}")
    return process


def _told(folder: Path) -> tuple[int, float, str]:
    """Process, its start and host, as the driver wrote them."""
    told = json.loads((folder / DRIVER_NAME).read_text())
    return int(told["pid"]), float(told["started"]), str(told["host"])


def _living(pid: int, started: float) -> psutil.Process | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if is_same(process, started) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _left(folder: Path) -> str:
    """What was written earlier, for a message."""
    found = sorted(_dumps(folder))
    return f"the last stacks are in {found[-1]}; " if found else ""


def _dumps(folder: Path) -> set[Path]:
    return {file.parent for file in (folder / FOLDER).glob(f"*/{SUMMARY}")}
