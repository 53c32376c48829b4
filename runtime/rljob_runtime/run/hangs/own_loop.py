"""Notices a driver whose own main thread does not come further, e.g. in a file system that hangs.

All that a driver waits for has a deadline, which it keeps itself; this is for when it cannot. Used by
`launch` around the steps. A thread; ends the process, since nobody else can.
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
"""Above the stages' deadline: starts of processes have one of 600 s, and copies of checkpoints have none."""
LAST_WORDS_SECONDS = 30.0


def own_limit(stage_seconds: float) -> float:
    """Seconds after which a driver is stuck, and not in a wait that has a deadline."""
    return max(stage_seconds, LEAST_SECONDS) + MARGIN_SECONDS


@contextlib.contextmanager
def watching_own_loop(
    moves: Callable[[], int],
    stuck: Callable[[str], None],
    *,
    seconds: float,
    code: int,
    look_seconds: float = LOOK_SECONDS,
    end: Callable[[int], None] = os._exit,
) -> Iterator[None]:
    """Within, `stuck` is told why, and the process ends with `code`, once `moves` was the same for `seconds`.
    Time in which the process itself was stopped does not count."""
    over = threading.Event()

    def watch() -> None:
        seen, silent = moves(), 0.0
        while not over.wait(look_seconds):
            seen, last = moves(), seen
            silent = silent + look_seconds if seen == last else 0.0
            if silent >= seconds:
                why = f"the driver itself did not come further within {seconds:g} s, in {stands()}"
                sys.stderr.write(f"{why}\n")
                words = threading.Thread(target=stuck, args=(why,), daemon=True)
                words.start()  # it may need what the main thread is stuck in
                words.join(LAST_WORDS_SECONDS)
                end(code)
                return

    thread = threading.Thread(target=watch, name="own-loop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LAST_WORDS_SECONDS)
