"""Implement the tool `python`: a program in a separate restricted process for each call. Used in the
tools' children.

`restricted` and `system_calls` define what the process may not do. This is a restriction, not a security
boundary: the process shares the kernel with the job.
"""

import json
import logging
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from rljob_runtime.children import restricted
from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.task.tools.answers import Failed, TookTooLong

MAX_OUTPUT_BYTES = 64 * 1024
"""Limit of stdout; a program that prints more is killed, and the answer contains the output up to the
limit."""
PROGRAM = Path(restricted.__file__)
REAP_SECONDS = 5.0

log = logging.getLogger(__name__)


def run_python(code: str, *, timeout_seconds: float, memory_bytes: int) -> str:
    """Return what the program prints. Raises Failed with its output and error, and TookTooLong at its
    deadline.

    At the deadline the program is killed. No process of it remains when this returns.
    """
    deadline = time.monotonic() + timeout_seconds
    request = {
        "code": code,
        "memory_bytes": memory_bytes,
        "cpu_seconds": math.ceil(timeout_seconds) + 1,
    }
    with OwnedFolder("call") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-W", "ignore", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder.path,
            env={},
            start_new_session=True,
        )
        try:
            output, cut = _exchange(process, json.dumps(request).encode(), deadline)
            left = max(deadline - time.monotonic(), 0.01)
            status = 0 if cut else process.wait(left)
        except subprocess.TimeoutExpired:
            raise TookTooLong(timeout_seconds) from None
        finally:
            _end(process)
    return _answer(output.decode(errors="replace").strip(), status)


def check_restricted() -> None:
    """Raise Failed if this machine cannot restrict a program."""
    run_python("", timeout_seconds=60, memory_bytes=512 * 2**20)


def _answer(text: str, status: int) -> str:
    if status == restricted.NOT_RESTRICTED:
        raise Failed(f"the process could not be restricted: {text}")
    if status < 0:
        raise Failed(f"{text}\nkilled by {signal.Signals(-status).name}".strip())
    if status:
        raise Failed(text)
    return text


def _exchange(
    process: "subprocess.Popen[bytes]", request: bytes, deadline: float
) -> tuple[bytes, bool]:
    """Return the program's output, and whether it was cut. Raises TimeoutExpired."""
    assert process.stdin is not None and process.stdout is not None, "both are pipes"
    os.set_blocking(process.stdin.fileno(), False)
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(output) <= MAX_OUTPUT_BYTES:
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired(process.args, left)
            if any(key.fileobj is process.stdin for key, _ in ready):
                request = _push(process.stdin, request)
                if not request:
                    selector.unregister(process.stdin)
                    process.stdin.close()
            if any(key.fileobj is process.stdout for key, _ in ready):
                data = os.read(process.stdout.fileno(), MAX_OUTPUT_BYTES)
                if not data:
                    return output, False
                output += data
    return output[:MAX_OUTPUT_BYTES], True


def _push(pipe: IO[bytes], request: bytes) -> bytes:
    """Write to the pipe, and return the remainder of the request that it does not accept yet."""
    try:
        return request[os.write(pipe.fileno(), request) :]
    except BlockingIOError:
        return request
    except BrokenPipeError:
        return b""  # its exit status explains the failure


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the processes of its session, and reap it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # it has not been reaped, so its pid is not reused
    try:
        process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("pid=%d was there %g s after SIGKILL", process.pid, REAP_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
