"""Folders in the machine's temporary one, or in its memory, that go with the processes that made them, even
where they are killed.

A process holds a lock on each of its folders, which the kernel lets go when it ends; a folder that nobody has
locked is removed by the next run of the same user, or by `rljob clean`. Forks of the process hold it too.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "rljob-owned-"
LOCK_SECONDS = 10.0
MEMORY = Path("/dev/shm")
"""Files there are in the machine's memory, or the pod's, and outlive processes."""


class OwnedFolder:
    """One of this process; without `close`, until the process ends. kind: of its name."""

    def __init__(self, kind: str) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
            self._lock = os.open(self.path, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.path.exists():
                    return
            os.close(self._lock)  # it was taken for one that nobody has

    def close(self) -> None:
        """Remove it, with what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class MemoryFolder:
    """A run's, in this machine's memory; it outlives those of its processes that end before the others. run:
    its token. Raises OSError where another process keeps it locked."""

    def __init__(self, run: str) -> None:
        name = hashlib.sha256(run.encode()).hexdigest()[:24]
        self.path, deadline = MEMORY / f"{PREFIX}{name}", time.monotonic() + LOCK_SECONDS
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):  # somebody looks whether anybody has it
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if self.path.exists():
                    return
            os.close(self._lock)  # it may have been removed as one that nobody has
            if time.monotonic() > deadline:
                raise OSError(f"{self.path} is locked by another process; remove it")
            time.sleep(0.05)

    def close(self) -> None:
        """Remove it, with what is in it, for all of them."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> list[Path]:
    """Remove folders whose processes have ended, of this user. Returns them."""
    removed = []
    places = (Path(tempfile.gettempdir()), MEMORY)
    for folder in (found for place in places for found in place.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # it is another user's, has an owner, or is gone
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(lock)
    return removed
