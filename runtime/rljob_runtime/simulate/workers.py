"""The third implementation of the workers' interface: objects of this process, whose work takes virtual time.

`place_workers` and the driver start and call them like processes. `SimulatedWorkers` receives the stand-in
for each class. A method that is a generator takes time; every other one ends immediately.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import GeneratorType
from typing import Any

from rljob_runtime.errors import RljobError, WorkerFailed
from rljob_runtime.processes.workers import Anywhere, Call, Home, Worker
from rljob_runtime.simulate.virtual_clock import VirtualCall, VirtualClock

Make = Callable[..., object]
"""Creates a worker's stand-in from the worker's arguments."""


class SimulatedWorkers(Anywhere):
    """Workers of one run. stand_ins: by the class that they replace."""

    host = "simulated"

    def __init__(self, clock: VirtualClock, stand_ins: Mapping[type, Make]) -> None:
        self._clock, self._stand_ins = clock, stand_ins

    def hold_ports(self, count: int) -> list[int]:
        """Return placeholders for ports, since nothing listens."""
        return [0] * count

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **keywords: Any,
    ) -> Worker:
        """Create the stand-in for a worker of this class."""
        return SimulatedWorker(self._clock, self._stand_ins[kind](*arguments, **keywords))

    def end(self, worker: Any) -> None:
        """End a worker, whose calls fail."""
        worker.die()

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        """Return whether each of the workers has died."""
        return [worker.has_died for worker in workers]


class SimulatedWorker:
    """A worker, and its pending calls, which are carried out one after the other."""

    def __init__(self, clock: VirtualClock, stand_in: object) -> None:
        self.stand_in = stand_in
        self.has_died = False
        self._clock = clock
        self._waiting: deque[tuple[VirtualCall, str, tuple[Any, ...]]] = deque()
        self._current_call: VirtualCall | None = None

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            pending = VirtualCall()
            self._waiting.append((pending, name, arguments))
            if self._current_call is None:
                self._next()
            return pending

        return call

    def die(self) -> None:
        """Die immediately; pending calls fail, and so do later ones."""
        self.has_died = True
        owed = [self._current_call] if self._current_call is not None else []
        owed += [call for call, _, _ in self._waiting]
        self._waiting.clear()
        self._current_call = None
        for call in owed:
            call.fail(_death())

    def _next(self) -> None:
        """Carry out the first pending call, and further ones until one takes time."""
        while self._waiting and self._current_call is None:
            call, method, arguments = self._waiting.popleft()
            if self.has_died:
                call.fail(_death())
                continue
            unfinished = [
                argument
                for argument in arguments
                if isinstance(argument, Future) and not argument.done()
            ]
            if unfinished:
                self._current_call = call
                unfinished[0].add_done_callback(partial(self._retry, (call, method, arguments)))
                return
            self._begin(call, method, arguments)

    def _retry(self, owed: tuple[VirtualCall, str, tuple[Any, ...]], _: Call) -> None:
        """Put a call back into the queue after one of its arguments has ended."""
        if self._current_call is owed[0]:
            self._current_call = None
            self._waiting.appendleft(owed)
            self._clock.soon(self._next)

    def _begin(self, call: VirtualCall, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            values = [
                argument.result(timeout=0) if isinstance(argument, Future) else argument
                for argument in arguments
            ]
            result = getattr(self.stand_in, method)(*values)
        except RljobError as error:
            call.fail(error)
            return
        if not isinstance(result, GeneratorType):
            call.settle(result)
            return
        self._current_call = call
        call.add_done_callback(self._ended)
        self._clock.carry_out(result, call)

    def _ended(self, call: Call) -> None:
        if self._current_call is call:
            self._current_call = None
            if self._waiting:
                self._clock.soon(self._next)


def _death() -> WorkerFailed:
    return WorkerFailed(ProcessLookupError("the device has failed"))
