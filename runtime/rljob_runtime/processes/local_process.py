"""Run a worker's process without Ray: create its object, then answer calls until the connection closes.

Forked by `local_workers`.
"""

import contextlib
import os
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rljob_runtime.children.forked_children import start_forking
from rljob_runtime.errors import RljobError, WorkerFailed
from rljob_runtime.processes.stop_signals import ignore_stop_signals
from rljob_runtime.processes.workers import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """The settings of a process. name: as `ps` shows it. make: creates its object. output: file for
    its output. forks: whether it starts child processes (`line_child`)."""

    name: str
    make: Callable[[], Any]
    output: Path
    environment: dict[str, str]
    forks: bool


@dataclass(frozen=True, slots=True)
class CallResult:
    """The value that a call returned, or the error that it raised."""

    value: Any = None
    error: Exception | None = None

    def settle(self, call: Call) -> None:
        """End the call with this result."""
        if self.error is None:
            call.set_result(self.value)
        else:
            call.set_exception(self.error)


def serve(connection: Connection, spec: ProcessSpec) -> None:
    """Answer calls until the other end is closed; then end the process with all its threads."""
    ignore_stop_signals()
    os.environ.clear()
    os.environ.update(spec.environment)
    with contextlib.suppress(OSError):  # Linux
        Path("/proc/self/comm").write_text(spec.name)
    _write_into(spec.output)
    if spec.forks:
        start_forking()  # before its object starts threads
    worker, failure = None, None
    try:
        worker = spec.make()
    except Exception as error:
        failure = _failure(error)
    try:
        while True:
            method, arguments = connection.recv()
            connection.send_bytes(_bytes_of(failure or _call(worker, method, arguments)))
    except (EOFError, ConnectionError):
        os._exit(0)


def _call(worker: Any, method: str, arguments: tuple[Any, ...]) -> CallResult:
    try:
        return CallResult(getattr(worker, method)(*arguments))
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> CallResult:
    """Return rljob's own errors unchanged, and others as a WorkerFailed."""
    traceback.print_exception(error)
    return CallResult(error=error if isinstance(error, RljobError) else WorkerFailed(error))


def _bytes_of(result: CallResult) -> bytes:
    """Pickle the result so that the driver can read it. Errors that cannot be pickled are replaced by
    their text."""
    try:
        pickled = pickle.dumps(result)
        if result.error is not None:
            pickle.loads(pickled)  # noqa: S301 (pickled above)
    except Exception as error:
        inner = result.error or error
        described = RuntimeError(f"{type(inner).__name__}: {inner}")
        return pickle.dumps(CallResult(error=WorkerFailed(described)))
    return pickled


def _write_into(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
