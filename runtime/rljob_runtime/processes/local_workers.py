"""A run's workers as processes of this machine, forked from one that has torch in memory already.

Made by `launch` for `rljob run --local`. There is no Ray: nothing to place, one machine, and a worker
starts in milliseconds.
"""

import contextlib
import itertools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

from rljob_runtime.dock.ports import ReservedPorts
from rljob_runtime.errors import WorkerFailed
from rljob_runtime.processes.local_process import Answer, Begun, serve
from rljob_runtime.processes.stop_signals import held_back
from rljob_runtime.processes.workers import Anywhere, Call, Home, Worker

FORKSERVER = multiprocessing.get_context("forkserver")
END_SECONDS = 5.0
NOTICE_SECONDS = 1.0
"""How long a death is given to show."""
SAME_BLOW_SECONDS = 0.1
"""How long after one death those of the same moment are given."""


def start_forkserver() -> None:
    """The process that all workers are forked from; one for all runs of this process, and no run's own."""
    FORKSERVER.set_forkserver_preload(["rljob_runtime.processes.preloaded"])
    multiprocessing.resource_tracker.ensure_running()  # whose start would let go what is held back
    with held_back():  # until it disregards them
        multiprocessing.forkserver.ensure_running()


@dataclass(slots=True, kw_only=True)
class LocalWorkers(Anywhere):
    """Processes of one run, which end with the context. folder: where they write what they say."""

    folder: Path
    host: str = "127.0.0.1"
    started: list["LocalWorker"] = field(default_factory=list)
    ports: list[ReservedPorts] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self.started:
            worker.end()
        for ports in self.ports:
            ports.close()

    def hold_ports(self, count: int) -> list[int]:
        self.ports.append(ReservedPorts(count))
        return [*self.ports[-1]]

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        name = name or kind.__name__
        called = f"{next(self._numbers):02d}-{name}"
        begun = Begun(
            name=name,
            make=partial(kind, *arguments, **named),
            output=self.folder / f"{called}.log",
            environment=dict(os.environ),
            forks=getattr(kind, "has_children", False),
        )
        worker = LocalWorker(begun, called, restarts=restarts)
        self.started.append(worker)
        return worker

    def end(self, worker: Any) -> None:
        worker.end()
        if worker in self.started:  # whose files are closed once nobody knows it any more
            self.started.remove(worker)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        deadline = time.monotonic() + NOTICE_SECONDS
        while not any(w.has_died for w in workers) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(SAME_BLOW_SECONDS)
        return [worker.has_died for worker in workers]


class LocalWorker:
    """A process and the calls that it owes. One call at a time is with it, the others wait here."""

    def __init__(self, begun: Begun, name: str, *, restarts: bool) -> None:
        self._begun, self._name, self._restarts = begun, name, restarts
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Call, str, tuple[Any, ...]]] = deque()
        self._now: Call | None = None
        self._ended = False
        self.has_died = False
        self._start()

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            made: Call = Future()
            first = [each for each in arguments if isinstance(each, Future)]
            _after(first, made, lambda: self._put(made, name, tuple(map(_value, arguments))))
            return made

        return call

    def end(self) -> None:
        """Kill it; what it owes fails."""
        with self._lock:  # which whoever starts it again has until it has started
            self._ended = True
            self._process.kill()
        self._process.join(END_SECONDS)

    def _start(self) -> None:
        self._connection, theirs = FORKSERVER.Pipe()
        process: ForkServerProcess = FORKSERVER.Process(
            target=serve, args=(theirs, self._begun), name=self._name, daemon=False
        )
        process.start()
        self._process = process
        theirs.close()
        listening = partial(self._listen, self._connection, self._process)
        threading.Thread(target=listening, name=f"calls-of-{self._name}", daemon=True).start()

    def _put(self, call: Call, method: str, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            self._waiting.append((call, method, arguments))
            self._send()

    def _send(self) -> None:
        """The next call, if there is one and the process is free. With the lock."""
        if self.has_died:
            while self._waiting:
                self._waiting.popleft()[0].set_exception(self._death())
        elif self._waiting and self._now is None:
            self._now, method, arguments = self._waiting.popleft()
            with contextlib.suppress(OSError):  # it died: the listener hears of it
                self._connection.send((method, arguments))

    def _listen(self, connection: Connection, process: ForkServerProcess) -> None:
        """Until the process ends, which may be before the first call."""
        try:
            while True:
                answer: Answer = connection.recv()
                with self._lock:
                    call, self._now = self._now, None
                    self._send()
                assert call is not None, f"{self._name} answers, and nobody asked"
                answer.settle(call)
        except (EOFError, OSError):
            self._gone(process)

    def _gone(self, process: ForkServerProcess) -> None:
        process.join(END_SECONDS)
        with self._lock:
            lost, self._now = self._now, None
            again = self._restarts and not self._ended
            if again:
                try:
                    self._start()
                except (OSError, EOFError):  # who forks is gone: the run ends
                    again = False
            self.has_died = not again
            self._send()
        if lost is not None:
            lost.set_exception(self._death())

    def _death(self) -> WorkerFailed:
        code = self._process.exitcode
        return WorkerFailed(
            ProcessLookupError(f"{self._name} died with exit code {code}; see {self._begun.output}")
        )


def _after(calls: Sequence[Call], made: Call, go: Callable[[], None]) -> None:
    """`go` once all calls have ended; the first that failed fails what was to be made of them."""
    left, lock = len(calls), threading.Lock()
    if not left:
        go()

    def ended(_: Call) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last and (failed := next((e for c in calls if (e := c.exception())), None)):
            made.set_exception(failed)
        elif last:
            go()

    for call in calls:
        call.add_done_callback(ended)


def _value(argument: Any) -> Any:
    return argument.result(timeout=0) if isinstance(argument, Future) else argument
