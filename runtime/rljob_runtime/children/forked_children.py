"""Children that are forked from what this process has imported already, so that none imports it again.

`start_forking` is called by a process of `local_workers` while it has no threads; from then on `line_child`
starts its children here. They are forked by a process of their own, which stays without threads: a fork of a
process with threads may find their locks held for ever. It ends with this one, and its children with it.
"""

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

PR_SET_PDEATHSIG = 1
MAX_MESSAGE_BYTES = 4096
MAX_FILES = 3
LOOK_AGAIN_SECONDS = 0.01


def end_with_parent() -> None:
    """Let this process be killed once the thread that started it ends."""
    with contextlib.suppress(OSError, AttributeError):  # Linux; elsewhere the pipe's end must do
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_forking() -> None:
    """Make the process that forks this one's children. Call it before this process has threads."""
    global _forking
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _fork_until_gone(theirs)
    theirs.close()
    _forking = _Forking(ours)


def forked(module: str, *, stacks: int | None = None) -> tuple["ForkedChild", int | None] | None:
    """A child that runs the module's `main`, with the number under which it has the file `stacks`; None where
    this process forks none."""
    if _forking is None:
        return None
    reads, stdin = os.pipe()
    stdout, writes = os.pipe()
    files = [reads, writes, *([stacks] if stacks is not None else [])]
    try:
        told = _forking.ask({"start": module}, files)
    finally:
        os.close(reads)
        os.close(writes)
    child = ForkedChild(
        pid=told["pid"],
        stdin=open(stdin, "wb", buffering=0),  # noqa: SIM115 (as long as the child)
        stdout=open(stdout, "rb", buffering=0),  # noqa: SIM115
        forking=_forking,
    )
    return child, told["stacks"]


@dataclass(slots=True, kw_only=True)
class ForkedChild:
    """As much of `subprocess.Popen` as `line_child` asks for. Its number is its own until `wait` returned."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    forking: "_Forking"
    returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Its exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            self.returncode = self.forking.ask({"wait": self.pid})["status"]
            if self.returncode is None:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("a forked child", timeout)
                time.sleep(LOOK_AGAIN_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As Popen: none where it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)


class _Forking:
    """The process that forks, as its parent sees it; one question at a time, each answered at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def ask(self, question: dict[str, Any], files: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(question).encode()], files)
            return dict(json.loads(self._connection.recv(MAX_MESSAGE_BYTES)))


_forking: _Forking | None = None


def _fork_until_gone(connection: socket.socket) -> None:
    """The life of the process that forks; it has no other threads."""
    end_with_parent()
    while True:
        message, files, *_ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_FILES)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                connection.close()
                _run(asked["start"], files[0], files[1])
            with contextlib.suppress(OSError):  # it has done so itself, or is gone
                os.setpgid(pid, pid)
            answer = {"pid": pid, "stacks": files[2] if len(files) == MAX_FILES else None}
        for file in files:
            os.close(file)
        connection.send(json.dumps(answer).encode())


def _run(module: str, stdin: int, stdout: int) -> None:
    """The child: as after `python -W ignore -m MODULE`, but for what is imported."""
    status = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.close(stdin)
        os.close(stdout)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 (as long as the process)
        warnings.simplefilter("ignore")
        if numpy := sys.modules.get("numpy"):  # Python's own random numbers are new in each fork
            numpy.random.seed()
        importlib.import_module(module).main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
