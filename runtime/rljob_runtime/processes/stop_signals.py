"""SIGINT and SIGTERM to the workers of a run without Ray, which its driver alone obeys.

A terminal sends the one to all processes of a run, what stops a group of processes the other: a worker that
ended by it would take the step along that the driver wants to save.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOP = (signal.SIGINT, signal.SIGTERM)


def disregard() -> None:
    """From now on, in this process and in those that are forked from it; others that it starts obey."""
    for number in STOP:
        signal.signal(number, _nothing)
        # A wait of a library in C would fail otherwise.
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Within, they wait, in this thread and in processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _nothing(number: int, frame: FrameType | None) -> None:
    """No SIG_IGN, which processes that this one starts would have, too."""
