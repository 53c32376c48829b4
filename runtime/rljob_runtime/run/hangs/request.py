"""`rljob stacks DIR`: request the stacks of a living run, and the run's side of it: SIGUSR1.

A thread of the driver handles the signal, so a driver whose main thread is stuck answers too. In pods the
same command runs in the head's container (`cluster_commands`).
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
"""Function of a stage and a reason, as `Hangs.dump`."""


@contextlib.contextmanager
def answering_requests(folder: Path, dump: Dump) -> Iterator[None]:
    """Call `dump` in a thread at each SIGUSR1 to this process within the body. folder: the run's. Must be
    used in the main thread."""
    receiver, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    previous_handler = signal.signal(SIGNAL, lambda number, frame: None)
    previous_wakeup = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(
        target=_answer, args=(receiver, dump), name="hang-requests", daemon=True
    )
    thread.start()
    try:
        with naming_driver(folder):
            yield
    finally:
        signal.set_wakeup_fd(previous_wakeup)
        signal.signal(SIGNAL, previous_handler)
        wakeup.close()
        thread.join(PATIENCE_SECONDS)
        receiver.close()


def _answer(receiver: socket.socket, dump: Dump) -> None:
    """Answer requests until the other end is closed. Bytes are numbers of signals; several received together
    are one request."""
    while numbers := receiver.recv(4096):
        if SIGNAL in numbers:
            dump(ASKED, "asked for")


def ask_run(folder: Path, *, seconds: float = PATIENCE_SECONDS) -> Path:
    """Request the stacks of the run of a folder, and return the folder that it wrote.

    Raises ConfigError if no run of the folder lives on this machine, NoAnswer after `seconds`.
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
        driver_facts = read_driver(folder)
    except (OSError, ValueError):
        raise ConfigError(
            f"{folder}: no run lives there; {_earlier_stacks(folder)}name the folder of a run that runs now"
        ) from None
    if driver_facts.host != socket.gethostname():
        raise ConfigError(f"{folder}: its run lives on {driver_facts.host}; ask there")
    process = running_process(driver_facts.pid, driver_facts.started)
    if process is None or driver_facts.pid == os.getpid():
        raise ConfigError(f"{folder}: its run has ended, killed; {_earlier_stacks(folder)}")
    return process


def _earlier_stacks(folder: Path) -> str:
    """Return where stacks were written earlier, as part of a message."""
    folders = sorted(_dumps(folder))
    return f"the last stacks are in {folders[-1]}; " if folders else ""


def _dumps(folder: Path) -> set[Path]:
    return {file.parent for file in (folder / FOLDER).glob(f"*/{SUMMARY}")}
