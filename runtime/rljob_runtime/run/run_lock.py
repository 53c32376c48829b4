"""Allow one process at a time in a run's folder: two that train there would overwrite each other's
checkpoints.

`run_place` takes the lock before anything in the folder is changed. It is a lock of the file system, which
also works on shared storage (NFS, CephFS, Lustre with `flock`). It ends with its process, however that dies.
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
"""The file names the owner of the lock, only for the message."""
AGAIN_SECONDS = 0.5
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""

log = logging.getLogger(__name__)


class RunLock:
    """The lock of one run's folder, held from construction until `release` or the end of the process.

    wait_seconds: how long to wait for another process that has it. Raises FolderInUse after that. No other
    descriptor of the file may be opened in this process: closing one would end the lock.
    """

    def __init__(self, folder: Path, *, wait_seconds: float) -> None:
        self._file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + wait_seconds
        while not self._try_lock(folder):
            if time.monotonic() >= deadline:
                owner = _owner(self._file)
                os.close(self._file)
                raise FolderInUse(
                    f"{folder}: a run is training there already, {owner}; wait for its end, stop it, or name "
                    "another folder (--output)"
                )
            time.sleep(AGAIN_SECONDS)
        owner_facts = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.truncate(self._file, 0)
        os.pwrite(self._file, json.dumps(owner_facts).encode(), 0)

    def release(self) -> None:
        """Release the folder to other processes. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try_lock(self, folder: Path) -> bool:
        try:
            # The lock belongs to the process, not to the open file: forked children do not inherit it.
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
        owner_facts = json.loads(os.pread(file, 4096, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner_facts["since"]))
        return f"process {owner_facts['pid']} on {owner_facts['host']} since {since}"
    return "in another process"
