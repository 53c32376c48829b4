"""A child process that is asked and answers in lines of JSON, and is killed at a deadline.

Used by the pools of rewards and of tools and by trackers, which run what may hang, crash, or is a user's. The
process gets its configuration as its first line, and says that it is ready.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

START_SECONDS = 120.0
READ_BYTES = 65_536
STACKS_SECONDS = 0.5
MAX_STACKS_BYTES = 32 << 10


class LineChild:
    """One process of a module; started at once, and again at the first `send` after it was lost.

    config: its first line, an object. tells_stacks: the object gets `stacks`, the number of a file to which
    the process writes its threads' stacks at SIGUSR1. start_seconds: until it is ready. Raises StartFailed.
    """

    def __init__(
        self,
        module: str,
        config: str,
        *,
        tells_stacks: bool = False,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._module, self._config, self._start_seconds = module, config, start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._ready = False
        self._stacks: IO[bytes] | None = None
        if tells_stacks:
            self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this child)
        self._start()

    def send(self, message: dict[str, Any]) -> None:
        """Ask; what is sent to a process that has died is answered by `answer`. Raises StartFailed."""
        if self._process is None:
            self._start()
        self._write(json.dumps(message))

    def answer(self, deadline_seconds: float) -> dict[str, Any]:
        """The next answer; `lost` with an error when the child hung (`hung`) or died."""
        line = self._line(deadline_seconds)
        if line is not None:
            return dict(json.loads(line))
        assert self._process is not None, "a lost child cannot answer"
        code = self._process.poll()
        what = (
            f"took longer than {deadline_seconds:g} s (timeoutSeconds) and was killed"
            if code is None
            else f"ended its process with exit status {code}"
        )
        self.kill()
        return {"lost": True, "hung": code is None, "error": what}

    def kill(self) -> None:
        """End the process with its process group, and reap it."""
        if self._process is None:
            return
        process, self._process, self._ready = self._process, None, False
        assert process.stdout is not None and process.stdin is not None
        self._selector.unregister(process.stdout)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
        self._buffer = b""

    def stacks(self) -> tuple[str, str] | None:
        """(process id, its threads' stacks); None where there is no process, or it tells none. From any
        thread."""
        process, file = self._process, self._stacks
        if process is None or file is None or not self._ready:
            return None
        file.seek(0)
        file.truncate()
        process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_SECONDS
        size = 0
        while time.monotonic() < deadline and not (size and size == _size(file)):
            size = _size(file)
            time.sleep(0.02)
        text = os.pread(file.fileno(), MAX_STACKS_BYTES, 0).decode(errors="replace")
        return str(process.pid), text or "did not answer"

    def _start(self) -> None:
        files = [self._stacks.fileno()] if self._stacks else []
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            pass_fds=files,
        )
        assert self._process.stdout is not None, "stdout is a pipe"
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        told = {"stacks": files[0]} if files else {}
        self._write(json.dumps(json.loads(self._config) | told))
        answer = self.answer(self._start_seconds)
        if "refused" in answer:
            self.kill()
            raise StartFailed(answer["refused"], refused=True)
        if "error" in answer:
            raise StartFailed(answer["error"], refused=False)
        self._ready = True

    def _write(self, line: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` tells what became of it
            self._process.stdin.write((line + "\n").encode())

    def _line(self, deadline_seconds: float) -> bytes | None:
        """The next whole line, or None at the deadline or the pipe's end."""
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._selector.select(deadline_seconds):
                return None
            data = self._process.stdout.read(READ_BYTES)
            if not data:
                self._process.wait()
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


class StartFailed(Exception):
    """The process did not say that it is ready. refused: the text is its own reason; else what became of
    it."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused
