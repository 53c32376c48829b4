"""One process at a time in a run's folder: two that train there would write over each other's checkpoints.

Called by `run_place` before anything in the folder is changed. A lock of the file system, on shared storage
too (NFS, CephFS, Lustre with `flock`): it ends with its process, however that dies.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path

from rljob_runtime.errors import FolderInUse

LOCK_NAME = "run.lock"
"""Names who has the lock, for the message alone."""
AGAIN_SECONDS = 0.5
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems without locks answer."""

log = logging.getLogger(__name__)


class RunLock:
    """The lock of one run's folder, from its making until `release` or the process's end.

    wait_seconds: how long another process that has it may still take to end. Raises FolderInUse after that.
    Other file descriptors of the file in this process must stay closed: closing one would end the lock.
    """

    def __init__(self, folder: Path, *, wait_seconds: float) -> None:
        self._file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_seconds
        while not self._taken(folder):
            if time.monotonic() >= deadline:
                owner = _owner(self._file)
                os.close(self._file)
                raise FolderInUse(
                    f"{folder}: a run is training there already, {owner}; wait for its end, stop it, or name "
                    "another folder (--output)"
                )
            time.sleep(AGAIN_SECONDS)
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.truncate(self._file, 0)
        os.pwrite(self._file, json.dumps(own).encode(), 0)

    def release(self) -> None:
        """Let others have the folder. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _taken(self, folder: Path) -> bool:
        try:
            # Of the process, not of the open file: children that are forked do not inherit it.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                log.warning("folder=%s has no locks (%s): keep other runs away", folder, error)
                return True
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True


def _owner(file: int) -> str:
    with contextlib.suppress(ValueError, KeyError, OSError):
        told = json.loads(os.pread(file, 4096, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(told["since"]))
        return f"process {told['pid']} on {told['host']} since {since}"
    return "in another process"
