"""The third way to carry out the seam for workers: objects of this process, whose work takes virtual time.

`place` and the driver start and call them as they do processes. Which object stands for which class is told
by whoever makes `SimulatedWorkers`; a method that is a generator takes time, every other one is done at once.
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
"""Of what stands for a worker, by the arguments that the worker has."""


class SimulatedWorkers(Anywhere):
    """Workers of one run. stand_ins: by the class that they stand for."""

    host = "simulated"

    def __init__(self, clock: VirtualClock, stand_ins: Mapping[type, Make]) -> None:
        self._clock, self._stand_ins = clock, stand_ins

    def hold_ports(self, count: int) -> list[int]:
        return [0] * count

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        return SimulatedWorker(self._clock, self._stand_ins[kind](*arguments, **named))

    def end(self, worker: Any) -> None:
        worker.die()

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        return [worker.has_died for worker in workers]


class SimulatedWorker:
    """A worker, and the calls that it owes: one is carried out after the other."""

    def __init__(self, clock: VirtualClock, stand_in: object) -> None:
        self.stand_in = stand_in
        self.has_died = False
        self._clock = clock
        self._waiting: deque[tuple[VirtualCall, str, tuple[Any, ...]]] = deque()
        self._now: VirtualCall | None = None

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            made = VirtualCall()
            self._waiting.append((made, name, arguments))
            if self._now is None:
                self._next()
            return made

        return call

    def die(self) -> None:
        """Now; what it owes fails, and so does what it is asked from now on."""
        self.has_died = True
        owed = [self._now] if self._now is not None else []
        owed += [call for call, _, _ in self._waiting]
        self._waiting.clear()
        self._now = None
        for call in owed:
            call.fail(_death())

    def _next(self) -> None:
        """Carry out what it was asked first, and what it can of the rest."""
        while self._waiting and self._now is None:
            call, method, arguments = self._waiting.popleft()
            if self.has_died:
                call.fail(_death())
                continue
            first = [each for each in arguments if isinstance(each, Future) and not each.done()]
            if first:
                self._now = call
                first[0].add_done_callback(partial(self._again, (call, method, arguments)))
                return
            self._begin(call, method, arguments)

    def _again(self, owed: tuple[VirtualCall, str, tuple[Any, ...]], _: Call) -> None:
        """What one of its arguments waited for is there."""
        if self._now is owed[0]:
            self._now = None
            self._waiting.appendleft(owed)
            self._clock.soon(self._next)

    def _begin(self, call: VirtualCall, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            given = [
                each.result(timeout=0) if isinstance(each, Future) else each for each in arguments
            ]
            found = getattr(self.stand_in, method)(*given)
        except RljobError as error:
            call.fail(error)
            return
        if not isinstance(found, GeneratorType):
            call.settle(found)
            return
        self._now = call
        call.add_done_callback(self._ended)
        self._clock.carry_out(found, call)

    def _ended(self, call: Call) -> None:
        if self._now is call:
            self._now = None
            if self._waiting:
                self._clock.soon(self._next)


def _death() -> WorkerFailed:
    return WorkerFailed(ProcessLookupError("the device has failed"))
