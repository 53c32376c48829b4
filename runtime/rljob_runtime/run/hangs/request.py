"""`rljob stacks DIR`: let a living run write where it stands, and the run's side of it: SIGUSR1.

The signal reaches a thread of the driver's, so that a driver whose main thread is stuck answers, too.
In pods the same command runs in the head's container (`cluster_commands`).
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from rljob_runtime.errors import ConfigError, NoAnswer
from rljob_runtime.record.driver_file import naming_driver, read_driver, running_process
from rljob_runtime.record.hang_files import ASKED, FOLDER, SUMMARY

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
    try:
        with naming_driver(folder):
            yield
    finally:
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


def _driver(folder: Path) -> psutil.Process:
    try:
        place = read_driver(folder)
    except (OSError, ValueError):
        raise ConfigError(
            f"{folder}: no run lives there; {_left(folder)}name the folder of a run that runs now"
        ) from None
    if place.host != socket.gethostname():
        raise ConfigError(f"{folder}: its run lives on {place.host}; ask there")
    process = running_process(place.pid, place.started)
    if process is None or place.pid == os.getpid():
        raise ConfigError(f"{folder}: its run has ended, killed; {_left(folder)}")
    return process


def _left(folder: Path) -> str:
    """What was written earlier, for a message."""
    found = sorted(_dumps(folder))
    return f"the last stacks are in {found[-1]}; " if found else ""


def _dumps(folder: Path) -> set[Path]:
    return {file.parent for file in (folder / FOLDER).glob(f"*/{SUMMARY}")}
