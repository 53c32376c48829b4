"""Asking a run to stop: Ctrl-C on a terminal, SIGTERM on a cluster. Called by `launch`, and by `supervisor`
for the driver below it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from rljob_api.spec.exit_codes import ExitCode

FROM_ABOVE = signal.SIGUSR2
"""What the process above a driver tells it with. Ray ends a job by SIGTERM to all of its processes, of which
the driver would take its own and the one that is passed on for two requests."""


class StopRequest:
    """Ctrl-C: the first asks the run to stop, the second ends the process at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        if self.asked:
            os._exit(ExitCode.KILLED)  # the reaper ends Ray's processes
        self.asked = True


@contextlib.contextmanager
def stop_signals(stop: StopRequest, *, from_above: bool = False) -> Iterator[None]:
    """Within, SIGINT and SIGTERM ask the run to stop; with a process above, what comes from there alone."""
    given = dict.fromkeys((signal.SIGINT, signal.SIGTERM), _nothing if from_above else stop.handle)
    given |= {FROM_ABOVE: stop.handle} if from_above else {}
    previous = {number: signal.signal(number, handler) for number, handler in given.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _nothing(number: int, frame: FrameType | None) -> None:
    """No SIG_IGN, which processes that this one starts would have, too."""
