"""Requests to stop a run: Ctrl-C on a terminal, SIGTERM on a cluster. `launch` uses it, and `supervise` for
the driver below it."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from rljob_api.spec.exit_codes import ExitCode

FROM_ABOVE = signal.SIGUSR2
"""Signal from the process above a driver. Ray ends a job by SIGTERM to all of its processes. A driver would
take its own SIGTERM and the forwarded one for two requests."""


class StopRequest:
    """Whether a run is to stop: the first Ctrl-C asks it to, the second ends the process immediately."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self) -> bool:
        return self.requested

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: request a stop, or end the process at the second one."""
        if self.requested:
            os._exit(ExitCode.KILLED)  # the reaper ends Ray's processes
        self.requested = True


@contextlib.contextmanager
def stop_signals(stop: StopRequest, *, from_above: bool = False) -> Iterator[None]:
    """Let SIGINT and SIGTERM request a stop within the body. With a process above, only signals from there
    do."""
    handlers = dict.fromkeys(
        (signal.SIGINT, signal.SIGTERM), _ignore if from_above else stop.handle
    )
    handlers |= {FROM_ABOVE: stop.handle} if from_above else {}
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal. SIG_IGN would be inherited by the processes that this one starts."""
