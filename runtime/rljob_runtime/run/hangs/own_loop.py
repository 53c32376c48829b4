"""Detect a driver whose own main thread makes no progress, e.g. in a file system that hangs.

All waits of a driver have deadlines, which it enforces itself; this is for when it cannot. `launch` uses it
around the steps. A thread ends the process, because the main thread cannot.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from rljob_runtime.processes.hangs.stacks import stands

LOOK_SECONDS = 10.0
LEAST_SECONDS = 3600.0
MARGIN_SECONDS = 1200.0
"""Added to the stages' deadline: starts of processes have one of 600 s, and copies of checkpoints have
none."""
LAST_WORDS_SECONDS = 30.0


def stuck_limit(stage_seconds: float) -> float:
    """Return the seconds after which a driver is stuck, rather than in a wait that has a deadline."""
    return max(stage_seconds, LEAST_SECONDS) + MARGIN_SECONDS


@contextlib.contextmanager
def watching_main_loop(
    progress_count: Callable[[], int],
    stuck: Callable[[str], None],
    *,
    seconds: float,
    code: int,
    look_seconds: float = LOOK_SECONDS,
    end: Callable[[int], None] = os._exit,
) -> Iterator[None]:
    """Call `stuck` with the reason and end the process with `code`, if `progress_count` stays the same for
    `seconds` within the body. Time in which the process itself was stopped does not count."""
    over = threading.Event()

    def watch() -> None:
        """Poll `progress_count` until the body ends."""
        count, stuck_seconds = progress_count(), 0.0
        while not over.wait(look_seconds):
            count, previous = progress_count(), count
            stuck_seconds = stuck_seconds + look_seconds if count == previous else 0.0
            if stuck_seconds >= seconds:
                reason = (
                    f"the driver itself did not come further within {seconds:g} s, in {stands()}"
                )
                sys.stderr.write(f"{reason}\n")
                reporter = threading.Thread(target=stuck, args=(reason,), daemon=True)
                reporter.start()  # it may need a lock that the main thread holds
                reporter.join(LAST_WORDS_SECONDS)
                end(code)
                return

    thread = threading.Thread(target=watch, name="own-loop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_WORDS_SECONDS)
