"""Asking a run to stop: Ctrl-C on a terminal, SIGTERM on a cluster. Called by `launch`."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from rljob_api.spec.exit_codes import ExitCode


class StopRequest:
    """Ctrl-C: the first asks the run to stop, the second ends the process at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        return self.asked

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler of SIGINT and SIGTERM."""
        if self.asked:
            os._exit(ExitCode.KILLED)  # the reaper ends Ray's processes
        self.asked = True


@contextlib.contextmanager
def stop_signals(stop: StopRequest) -> Iterator[None]:
    """Within, SIGINT and SIGTERM ask the run to stop."""
    previous = {s: signal.signal(s, stop.handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
