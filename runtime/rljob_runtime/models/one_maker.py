"""Let one process of a machine create a built-in model while the others wait for it.

`tiny` and `smollm2` use this.
"""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rljob_runtime.errors import DeadlineError

MAKING_SECONDS = 1800.0
"""Deadline for another process to finish; the tiny model takes minutes on a busy machine."""
PROGRESS_SECONDS = 30.0
POLL_SECONDS = 0.1


@contextlib.contextmanager
def one_maker(
    file: Path, progress: Callable[[str], None], *, seconds: float = MAKING_SECONDS
) -> Iterator[None]:
    """Hold an exclusive lock on `file`, which the kernel releases if the process dies.

    progress: called while waiting for another process; it may raise. Raises DeadlineError if another process
    holds the lock for `seconds`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        _lock(handle, file, progress, seconds)
        yield


def _lock(handle: IO[str], file: Path, progress: Callable[[str], None], seconds: float) -> None:
    started = time.monotonic()
    next_progress = POLL_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        waited = time.monotonic() - started
        if waited > seconds:
            raise DeadlineError(
                f"another process has held {file} for {seconds:g} s, while it makes the built-in model: wait "
                f"for it, or find it with `fuser {file}` and end it",
                stage="model",
            )
        if waited > next_progress:
            next_progress = waited + PROGRESS_SECONDS
            progress(f"waiting for another process that makes the built-in model ({file})")
        time.sleep(POLL_SECONDS)
