"""One process of a machine makes a built-in model; the others wait until it is made. Called by `tiny` and
`smollm2`."""

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from rljob_runtime.errors import DeadlineError

MAKING_SECONDS = 1800.0
"""How long another may take; the tiny model takes minutes on a busy machine."""
TELL_SECONDS = 30.0
LOOK_SECONDS = 0.1


@contextlib.contextmanager
def one_maker(
    file: Path, progress: Callable[[str], None], *, seconds: float = MAKING_SECONDS
) -> Iterator[None]:
    """Holds the lock of `file`, which the kernel takes from who ends. progress: told who is waited for, and
    may raise. Raises DeadlineError when another has it all the time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        _lock(handle, file, progress, seconds)
        yield


def _lock(handle: IO[str], file: Path, progress: Callable[[str], None], seconds: float) -> None:
    started = time.monotonic()
    next_news = LOOK_SECONDS
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
        if waited > next_news:
            next_news = waited + TELL_SECONDS
            progress(f"waiting for another process that makes the built-in model ({file})")
        time.sleep(LOOK_SECONDS)
