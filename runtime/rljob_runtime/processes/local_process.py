"""What a worker's process does without Ray: makes its object, then answers calls until nobody asks any more.

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
from rljob_runtime.processes.stop_signals import disregard
from rljob_runtime.processes.workers import Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a process begins with. name: as `ps` shows it. make: its object. output: where what it says
    goes. forks: whether it has children of its own (`line_child`)."""

    name: str
    make: Callable[[], Any]
    output: Path
    environment: dict[str, str]
    forks: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned or raised."""

    value: Any = None
    error: Exception | None = None

    def settle(self, call: Call) -> None:
        """End the call with it."""
        if self.error is None:
            call.set_result(self.value)
        else:
            call.set_exception(self.error)


def serve(connection: Connection, begun: Begun) -> None:
    """Until the other end is closed; then the process ends with all its threads."""
    disregard()
    os.environ.clear()
    os.environ.update(begun.environment)
    with contextlib.suppress(OSError):  # Linux
        Path("/proc/self/comm").write_text(begun.name)
    _write_into(begun.output)
    if begun.forks:
        start_forking()  # before its object starts threads
    made, failure = None, None
    try:
        made = begun.make()
    except Exception as error:
        failure = _told(error)
    try:
        while True:
            method, arguments = connection.recv()
            connection.send_bytes(_bytes_of(failure or _answer(made, method, arguments)))
    except (EOFError, ConnectionError):
        os._exit(0)


def _answer(made: Any, method: str, arguments: tuple[Any, ...]) -> Answer:
    try:
        return Answer(getattr(made, method)(*arguments))
    except Exception as error:
        return _told(error)


def _told(error: Exception) -> Answer:
    """rljob's own errors as they are, others as what a worker failed of."""
    traceback.print_exception(error)
    return Answer(error=error if isinstance(error, RljobError) else WorkerFailed(error))


def _bytes_of(answer: Answer) -> bytes:
    """As the driver can read it; what cannot be sent is told in words."""
    try:
        made = pickle.dumps(answer)
        if answer.error is not None:
            pickle.loads(made)  # noqa: S301 (as made above)
    except Exception as error:
        inner = answer.error or error
        told = RuntimeError(f"{type(inner).__name__}: {inner}")
        return pickle.dumps(Answer(error=WorkerFailed(told)))
    return made


def _write_into(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    end = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(end, 1)
    os.dup2(end, 2)
    os.close(end)
