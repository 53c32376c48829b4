"""Run workers as processes of this machine, forked from one that has already imported torch.

Created by `launch` for `rljob run --local`. There is no Ray and nothing to place, and a worker starts in
milliseconds.
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
from rljob_runtime.processes.local_process import CallResult, ProcessSpec, serve
from rljob_runtime.processes.stop_signals import blocked_stop_signals
from rljob_runtime.processes.workers import Anywhere, Call, Home, Worker

FORKSERVER = multiprocessing.get_context("forkserver")
END_SECONDS = 5.0
NOTICE_SECONDS = 1.0
"""How long a death may take to be noticed."""
SAME_BLOW_SECONDS = 0.1
"""How long to wait after one death for others with the same cause."""


def start_forkserver() -> None:
    """Start the process that all workers are forked from. It serves all runs of this process and
    belongs to none of them."""
    FORKSERVER.set_forkserver_preload(["rljob_runtime.processes.preloaded"])
    multiprocessing.resource_tracker.ensure_running()  # its start would unblock the signals
    with blocked_stop_signals():  # until it ignores them
        multiprocessing.forkserver.ensure_running()


@dataclass(slots=True, kw_only=True)
class LocalWorkers(Anywhere):
    """The processes of one run, which end with the context. folder: for the files with their output."""

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
        numbered_name = f"{next(self._numbers):02d}-{name}"
        spec = ProcessSpec(
            name=name,
            make=partial(kind, *arguments, **named),
            output=self.folder / f"{numbered_name}.log",
            environment=dict(os.environ),
            forks=getattr(kind, "has_children", False),
        )
        worker = LocalWorker(spec, numbered_name, restarts=restarts)
        self.started.append(worker)
        return worker

    def end(self, worker: Any) -> None:
        worker.end()
        if worker in self.started:  # its files are closed once it has no more references
            self.started.remove(worker)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        deadline = time.monotonic() + NOTICE_SECONDS
        while not any(w.has_died for w in workers) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(SAME_BLOW_SECONDS)
        return [worker.has_died for worker in workers]


class LocalWorker:
    """A process and its pending calls. One call at a time is sent to it; the others wait here."""

    def __init__(self, spec: ProcessSpec, name: str, *, restarts: bool) -> None:
        self._spec, self._name, self._restarts = spec, name, restarts
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Call, str, tuple[Any, ...]]] = deque()
        self._current: Call | None = None
        self._ended = False
        self.has_died = False
        self._start()

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            pending: Call = Future()
            dependencies = [each for each in arguments if isinstance(each, Future)]
            _after(
                dependencies,
                pending,
                lambda: self._put(pending, name, tuple(map(_value, arguments))),
            )
            return pending

        return call

    def end(self) -> None:
        """Kill the process; its pending calls fail."""
        with self._lock:  # a restart holds it until the process has started
            self._ended = True
            self._process.kill()
        self._process.join(END_SECONDS)

    def _start(self) -> None:
        self._connection, child_end = FORKSERVER.Pipe()
        process: ForkServerProcess = FORKSERVER.Process(
            target=serve, args=(child_end, self._spec), name=self._name, daemon=False
        )
        process.start()
        self._process = process
        child_end.close()
        listening = partial(self._listen, self._connection, self._process)
        threading.Thread(target=listening, name=f"calls-of-{self._name}", daemon=True).start()

    def _put(self, call: Call, method: str, arguments: tuple[Any, ...]) -> None:
        with self._lock:
            self._waiting.append((call, method, arguments))
            self._send()

    def _send(self) -> None:
        """Send the next call, if there is one and the process is free. The lock must be held."""
        if self.has_died:
            while self._waiting:
                self._waiting.popleft()[0].set_exception(self._death())
        elif self._waiting and self._current is None:
            self._current, method, arguments = self._waiting.popleft()
            with contextlib.suppress(OSError):  # it died: the listener notices
                self._connection.send((method, arguments))

    def _listen(self, connection: Connection, process: ForkServerProcess) -> None:
        """Receive results until the process ends, which may be before the first call."""
        try:
            while True:
                result: CallResult = connection.recv()
                with self._lock:
                    call, self._current = self._current, None
                    self._send()
                assert call is not None, f"{self._name} answers, and nobody asked"
                result.settle(call)
        except (EOFError, OSError):
            self._handle_end(process)

    def _handle_end(self, process: ForkServerProcess) -> None:
        process.join(END_SECONDS)
        with self._lock:
            lost, self._current = self._current, None
            again = self._restarts and not self._ended
            if again:
                try:
                    self._start()
                except (OSError, EOFError):  # the forkserver has ended: the run ends
                    again = False
            self.has_died = not again
            self._send()
        if lost is not None:
            lost.set_exception(self._death())

    def _death(self) -> WorkerFailed:
        code = self._process.exitcode
        return WorkerFailed(
            ProcessLookupError(f"{self._name} died with exit code {code}; see {self._spec.output}")
        )


def _after(calls: Sequence[Call], dependent: Call, go: Callable[[], None]) -> None:
    """Call `go` once all calls have ended. If some failed, the first one's error fails the dependent
    call instead."""
    left, lock = len(calls), threading.Lock()
    if not left:
        go()

    def ended(_: Call) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last and (failed := next((e for c in calls if (e := c.exception())), None)):
            dependent.set_exception(failed)
        elif last:
            go()

    for call in calls:
        call.add_done_callback(ended)


def _value(argument: Any) -> Any:
    return argument.result(timeout=0) if isinstance(argument, Future) else argument
