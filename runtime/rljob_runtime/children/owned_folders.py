"""Folders in the machine's temporary folder or in its memory that are removed with the processes that created
them, even if these are killed.

A process holds a lock on each of its folders, which the kernel releases when the process ends. A folder
without a lock is removed by the next run of the same user, or by `rljob clean`. Forks of the process hold its
lock too.
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
"""Folder of files in the memory of the machine or the pod; they outlive processes."""


class OwnedFolder:
    """A folder that exists until `close` or the end of this process. kind: part of its name."""

    def __init__(self, kind: str) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
            self._lock = os.open(self.path, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.path.exists():
                    return
            os.close(self._lock)  # it was removed as one without an owner

    def close(self) -> None:
        """Remove the folder with its content."""
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
    """A run's folder in this machine's memory, shared by the run's processes until all have ended. run: its
    token. Raises OSError if another process keeps it locked."""

    def __init__(self, run: str) -> None:
        name = hashlib.sha256(run.encode()).hexdigest()[:24]
        self.path, deadline = MEMORY / f"{PREFIX}{name}", time.monotonic() + LOCK_SECONDS
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
            with contextlib.suppress(BlockingIOError):  # another process checks its owner
                fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if self.path.exists():
                    return
            os.close(self._lock)  # it may have been removed as one without an owner
            if time.monotonic() > deadline:
                raise OSError(f"{self.path} is locked by another process; remove it")
            time.sleep(0.05)

    def close(self) -> None:
        """Remove the folder with its content, for all processes of the run."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned() -> list[Path]:
    """Remove folders of this user whose processes have ended, and return them."""
    removed = []
    parents = (Path(tempfile.gettempdir()), MEMORY)
    for folder in (path for parent in parents for path in parent.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # it is another user's, has an owner, or is gone
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(lock)
    return removed
