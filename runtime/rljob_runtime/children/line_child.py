"""A child process that receives and answers requests in lines of JSON, and is killed at a deadline.

Pools of rewards and of tools, and trackers, use it to run code that may hang or crash, or that the user
wrote. The process gets its configuration as its first line, and answers that it is ready. It is a new Python,
or a fork if this process forks its children (`forked_children`).
"""

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from rljob_runtime.children.forked_children import ForkedChild, fork_child

START_SECONDS = 120.0
READ_BYTES = 65_536
STACKS_SECONDS = 0.5
MAX_STACKS_BYTES = 32 << 10
END_SECONDS = 5.0
"""How long a process may still exist after it closed its output, and after SIGKILL."""

log = logging.getLogger(__name__)


class LineChild:
    """One process of a module. It starts immediately, and again at the first `send` after it was lost.

    config: its first line, an object. writes_stacks: the object gets `stacks`, the number of a file to which
    the process writes its threads' stacks at SIGUSR1. start_seconds: until it is ready. Raises StartFailed.
    """

    def __init__(
        self,
        module: str,
        config: str,
        *,
        writes_stacks: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._module, self._config, self._start_seconds = module, config, start_seconds
        self._process: subprocess.Popen[bytes] | ForkedChild | None = None
        self._unsent, self._buffer = b"", b""
        self._ready = False
        self._stacks: IO[bytes] | None = None
        if writes_stacks:
            self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this child)
        self._start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a request. `answer` writes what the pipe does not take now, and reports if the process has
        died. Raises StartFailed."""
        if self._process is None:
            self._start()
        self._write(json.dumps(message))

    def answer(self, deadline_seconds: float) -> dict[str, Any]:
        """Return the next answer; it is `lost` with an error if the child hung (`hung`) or died."""
        try:
            return dict(json.loads(self._read_line(deadline_seconds)))
        except _ChildLost as lost:
            self.kill()
            return {"lost": True, "hung": lost.hung, "error": str(lost)}

    def kill(self) -> None:
        """Kill the process with its process group, and reap it."""
        if self._process is None:
            return
        process, self._process, self._ready = self._process, None, False
        assert process.stdout is not None and process.stdin is not None
        self._selector.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning(
                "module=%s pid=%d was there %g s after SIGKILL and is left alone",
                self._module,
                process.pid,
                END_SECONDS,
            )
        process.stdin.close()
        process.stdout.close()
        self._unsent, self._buffer = b"", b""

    def stacks(self) -> tuple[str, str] | None:
        """Return (process id, its threads' stacks); None if there is no process, or it writes none. May be
        called from any thread."""
        process, file = self._process, self._stacks
        if process is None or file is None or not self._ready:
            return None
        file.seek(0)
        file.truncate()
        process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_SECONDS
        size = 0
        while time.monotonic() < deadline and not (size and size == _file_size(file)):
            size = _file_size(file)
            time.sleep(0.02)
        text = os.pread(file.fileno(), MAX_STACKS_BYTES, 0).decode(errors="replace")
        return str(process.pid), text or "did not answer"

    def _start(self) -> None:
        stacks = self._stacks.fileno() if self._stacks else None
        self._selector = selectors.DefaultSelector()
        self._process, stacks = fork_child(self._module, stacks=stacks) or _spawn_child(
            self._module, stacks=stacks
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        stacks_field = {"stacks": stacks} if stacks is not None else {}
        self._write(json.dumps(json.loads(self._config) | stacks_field))
        answer = self.answer(self._start_seconds)
        if "refused" in answer:
            self.kill()
            raise StartFailed(answer["refused"], refused=True)
        if "error" in answer:
            raise StartFailed(answer["error"], refused=False)
        self._ready = True

    def _write(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        waiting = bool(self._unsent)
        self._unsent += (line + "\n").encode()
        if not waiting and not self._write_unsent():
            self._selector.register(self._process.stdin, selectors.EVENT_WRITE)

    def _write_unsent(self) -> bool:
        """Write what the pipe takes, and return whether nothing is left."""
        assert self._process is not None and self._process.stdin is not None
        try:
            written = self._process.stdin.write(self._unsent) or 0  # None: the pipe is full
        except BrokenPipeError:  # `answer` reports the end of the process
            written = len(self._unsent)
        self._unsent = self._unsent[written:]
        return not self._unsent

    def _read_line(self, seconds: float) -> bytes:
        """Return the next complete line, while unsent bytes are written. Raises _ChildLost at the deadline
        and at the pipe's end."""
        assert self._process is not None and self._process.stdout is not None
        remaining, deadline = max(seconds, 0.0), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready = self._selector.select(remaining) if remaining >= 0 else []
            if not ready:
                raise _ChildLost(
                    f"took longer than {seconds:g} s (timeoutSeconds) and was killed", True
                )
            for key, _ in ready:
                if key.fileobj is self._process.stdout:
                    self._read()
                elif self._write_unsent():
                    self._selector.unregister(key.fileobj)
            remaining = deadline - time.monotonic()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        data = self._process.stdout.read(READ_BYTES)
        self._buffer += data
        if data:
            return
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise _ChildLost(
                f"closed its output, was there {END_SECONDS:g} s after it, and was killed", False
            ) from None
        raise _ChildLost(f"ended its process with exit status {code}", False)


def _spawn_child(module: str, *, stacks: int | None) -> tuple[subprocess.Popen[bytes], int | None]:
    """Return a new Python that runs the module, with the number under which it has the file `stacks`."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-W",
            "ignore",
            "-m",
            module,
        ],  # -P: no modules of the working folder
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        process_group=0,
        pass_fds=[] if stacks is None else [stacks],
    )
    return process, stacks


def _file_size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


class StartFailed(Exception):
    """The process did not become ready. refused: the text is its own reason; else it describes how the
    process ended."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class _ChildLost(Exception):
    """The process gives no more answers. hung: because it took too long."""

    def __init__(self, text: str, hung: bool) -> None:
        super().__init__(text)
        self.hung = hung
