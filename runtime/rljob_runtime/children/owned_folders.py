"""Folders in the machine's temporary one that go with the process that made them, even where it is killed.

A process holds a lock on each of its folders, which the kernel lets go when it ends; a folder that nobody has
locked is removed by the next run of the same user, or by `rljob clean`. Forks of the process hold it too.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

PREFIX = "rljob-owned-"


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


def remove_abandoned() -> list[Path]:
    """Remove folders whose processes have ended, of this user. Returns them."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is another user's, has an owner, or is gone
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
                removed.append(folder)
            finally:
                os.close(lock)
    return removed
