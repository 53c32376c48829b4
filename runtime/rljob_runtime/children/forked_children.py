"""Children that are forked from a process with all modules imported, so that none imports them again.

A process of `local_workers` calls `start_forking` while it has no threads; from then on `line_child` starts
its children here. A separate process, which never has threads, forks them: a fork of a process with threads
may find locks that are never released. That process ends with this one, and its children with it.
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
    with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the pipe ends it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start_forking() -> None:
    """Start the process that forks this one's children. Must be called before this process has threads."""
    global _fork_server
    parent_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        parent_end.close()
        _serve_forks(server_end)
    server_end.close()
    _fork_server = _ForkServer(parent_end)


def fork_child(
    module: str, *, stacks: int | None = None
) -> tuple["ForkedChild", int | None] | None:
    """Return a child that runs the module's `main`, with the number under which it has the file `stacks`.
    Returns None if this process forks no children."""
    if _fork_server is None:
        return None
    child_stdin, stdin = os.pipe()
    stdout, child_stdout = os.pipe()
    files = [child_stdin, child_stdout, *([stacks] if stacks is not None else [])]
    try:
        reply = _fork_server.ask({"start": module}, files)
    finally:
        os.close(child_stdin)
        os.close(child_stdout)
    child = ForkedChild(
        pid=reply["pid"],
        stdin=open(stdin, "wb", buffering=0),  # noqa: SIM115 (as long as the child)
        stdout=open(stdout, "rb", buffering=0),  # noqa: SIM115
        fork_server=_fork_server,
    )
    return child, reply["stacks"]


@dataclass(slots=True, kw_only=True)
class ForkedChild:
    """A forked child with the methods of `subprocess.Popen` that `line_child` needs. Its process id is not
    reused until `wait` has returned."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    fork_server: "_ForkServer"
    returncode: int | None = None

    def wait(self, timeout: float) -> int:
        """Return its exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            self.returncode = self.fork_server.ask({"wait": self.pid})["status"]
            if self.returncode is None:
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired("a forked child", timeout)
                time.sleep(LOOK_AGAIN_SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the child has ended, as `Popen.send_signal` does."""
        if self.returncode is None:
            os.kill(self.pid, number)


class _ForkServer:
    """The parent's connection to the process that forks. Requests are made one at a time, and answered
    immediately."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request with files, and return the answer."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(request).encode()], files)
            return dict(json.loads(self._connection.recv(MAX_MESSAGE_BYTES)))


_fork_server: _ForkServer | None = None


def _serve_forks(connection: socket.socket) -> None:
    """Serve requests for forks until the parent is gone. This process has no other threads."""
    end_with_parent()
    while True:
        message, files, *_ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, MAX_FILES)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = {"status": os.waitstatus_to_exitcode(status) if pid else None}
        else:
            pid = os.fork()
            if pid == 0:
                connection.close()
                _run_child(request["start"], files[0], files[1])
            with contextlib.suppress(OSError):  # the child has done so itself, or is gone
                os.setpgid(pid, pid)
            answer = {"pid": pid, "stacks": files[2] if len(files) == MAX_FILES else None}
        for file in files:
            os.close(file)
        connection.send(json.dumps(answer).encode())


def _run_child(module: str, stdin: int, stdout: int) -> None:
    """Run the module in the child as `python -W ignore -m MODULE` does, but with modules already imported."""
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
        if numpy := sys.modules.get("numpy"):  # Python's own generator is reseeded in each fork
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
