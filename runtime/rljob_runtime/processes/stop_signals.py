"""Shield the workers of a run without Ray from SIGINT and SIGTERM, which only its driver obeys.

A terminal sends SIGINT to all processes of a run, and a supervisor may send SIGTERM to the process group.
A worker that ended by it would lose the step that the driver wants to save.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOP = (signal.SIGINT, signal.SIGTERM)


def ignore_stop_signals() -> None:
    """Ignore the signals in this process and in those forked from it. Other processes that it starts
    obey them."""
    for number in STOP:
        signal.signal(number, _do_nothing)
        # A wait of a library in C would fail otherwise.
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)


@contextlib.contextmanager
def blocked_stop_signals() -> Iterator[None]:
    """Block the signals within the context, in this thread and in processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing. SIG_IGN would be inherited by processes that this one starts."""
