"""Workers without Ray whose nodes can be lost: a device that is started on one has no place until the node is
there again, as in a Ray cluster."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

from rljob_runtime.processes.local_workers import LocalWorkers
from rljob_runtime.processes.workers import Call, Home, Worker

LOST = dict[int, threading.Event]()
"""By node that is lost: set once it is there again."""
ANSWERED = dict[int, threading.Event]()
"""By node that was lost: set once a device that was started there has answered."""


def lose(node: int) -> None:
    """Nothing can be placed there from now on."""
    LOST[node], ANSWERED[node] = threading.Event(), threading.Event()


def find(node: int) -> None:
    """It is there again."""
    LOST.pop(node).set()


class WorkersOnNodes(LocalWorkers):
    """Takes the place of those of a run without Ray."""

    def has_place(self, node: int) -> bool:
        return node not in LOST

    def on_device(self, node: int, number: int) -> Home:
        return {"node": node}

    def start(self, kind: type, *arguments: Any, home: Home, **named: Any) -> Worker:
        begin = super().start
        node = home.get("node", -1)
        if (there := LOST.get(node)) is None:
            return begin(kind, *arguments, home=home, **named)
        late = partial(begin, kind, *arguments, home=home, **named)
        return LateWorker(there, ANSWERED[node], late)

    def end(self, worker: Any) -> None:
        started = _started(worker)
        if started is not None:
            super().end(started)

    def dead(self, workers: Any) -> list[bool]:
        return super().dead([_started(each) for each in workers])


def _started(worker: Any) -> Any:
    return worker.started if isinstance(worker, LateWorker) else worker


class LateWorker:
    """Starts once its node is there; calls wait for that. answered: set when the first was answered."""

    def __init__(
        self, there: threading.Event, answered: threading.Event, begin: Callable[[], Worker]
    ) -> None:
        self.started: Any = None
        self._answered = answered
        self._calls: SimpleQueue[tuple[Call, str, tuple[Any, ...]]] = SimpleQueue()
        threading.Thread(target=self._work, args=(there, begin), daemon=True).start()

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            made: Call = Future()
            self._calls.put((made, name, arguments))
            return made

        return call

    def _work(self, there: threading.Event, begin: Callable[[], Worker]) -> None:
        there.wait()
        self.started = begin()
        while True:
            made, name, arguments = self._calls.get()
            getattr(self.started, name)(*arguments).add_done_callback(
                _passed_on(made, self._answered)
            )


def _passed_on(made: Call, answered: threading.Event) -> Callable[[Call], None]:
    def settle(call: Call) -> None:
        answered.set()
        if error := call.exception(timeout=0):
            made.set_exception(error)
        else:
            made.set_result(call.result(timeout=0))

    return settle
