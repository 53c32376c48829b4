"""Virtual time: what is to happen, in order, and who waits for it.

The driver runs on it in the one thread that there is: where it waits for calls, the clock carries out what
comes before they end. Work that takes time is a generator, which yields seconds, or a call whose result it
waits for.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from functools import partial
from typing import Any

from rljob_runtime.errors import RljobError
from rljob_runtime.processes.workers import Call

LOOK_SECONDS = 10.0
"""Who waits only to look around after a moment does so this often: between events nothing can be seen."""

Work = Generator[Any, Any, Any]
"""Yields seconds that pass, or a `VirtualCall`, whose result it is given. Returns the result of the work."""


class Watch:
    """Somebody waits for so many calls."""

    __slots__ = ("left", "on_failure", "over")

    def __init__(self, left: int, *, on_failure: bool) -> None:
        self.left, self.on_failure = left, on_failure
        self.over = left <= 0

    def ended(self, *, failed: bool) -> None:
        """One of them has."""
        self.left -= 1
        self.over |= self.left <= 0 or (failed and self.on_failure)


class VirtualCall(Future[Any]):
    """A call that ends in virtual time. watches: of those who wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[Watch] = []

    def settle(self, value: Any) -> None:
        """It has ended well."""
        self.set_result(value)
        for watch in self.watches:
            watch.ended(failed=False)

    def fail(self, error: BaseException) -> None:
        """It has ended with an error."""
        self.set_exception(error)
        for watch in self.watches:
            watch.ended(failed=True)


class VirtualClock:
    """begins: unix seconds. events: carried out so far."""

    def __init__(self, begins: float) -> None:
        self.seconds = 0.0
        self.events = 0
        self._begins = begins
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count()

    def unix_seconds(self) -> float:
        return self._begins + self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self._pass(self.seconds + seconds, ())

    def wait(
        self, calls: Sequence[Call], *, seconds: float, until: str, groups: Sequence[Sequence[Call]]
    ) -> None:
        if seconds <= 0:
            return
        groups = [group for group in groups if group]
        watches = self._watches(calls, until, groups)
        self._pass(self.seconds + max(seconds, LOOK_SECONDS if calls else 0.0), watches)

    def soon(self, do: Callable[[], None]) -> None:
        """Do it now, behind what else is to be done now."""
        self._soon.append(do)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it in so many seconds."""
        heapq.heappush(self._later, (self.seconds + seconds, next(self._numbers), do))

    def carry_out(self, work: Work, call: VirtualCall) -> None:
        """Begin work; the call ends with it."""
        self._go_on(work, call, None)

    def _go_on(self, work: Work, call: VirtualCall, value: Any, error: Any = None) -> None:
        """Until it waits for what is not there yet."""
        while True:
            if call.done():  # whoever did it has died
                work.close()
                return
            try:
                awaited = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                call.settle(end.value)
                return
            except RljobError as failed:
                call.fail(failed)
                return
            if not isinstance(awaited, Future):
                self.after(awaited, partial(self._go_on, work, call, None))
                return
            if not awaited.done():
                awaited.add_done_callback(lambda ended: self._resume(work, call, ended))
                return
            error = awaited.exception(timeout=0)
            value = None if error is not None else awaited.result(timeout=0)

    def _resume(self, work: Work, call: VirtualCall, ended: Call) -> None:
        error = ended.exception(timeout=0)
        value = None if error is not None else ended.result(timeout=0)
        self.soon(partial(self._go_on, work, call, value, error))

    def _pass(self, end: float, watches: Sequence[Watch]) -> None:
        """Carry out what comes until somebody is not watched any more, all of its moment with it, or the
        end."""
        over = any(watch.over for watch in watches)
        while not over or self._due(self.seconds):
            if over and not self._due(self.seconds):
                return
            if not self._due(end):
                self.seconds = max(self.seconds, end)
                return
            self._next()
            over = over or any(watch.over for watch in watches)

    def _due(self, end: float) -> bool:
        return bool(self._soon) or bool(self._later and self._later[0][0] <= end)

    def _next(self) -> None:
        self.events += 1
        if self._soon:
            self._soon.popleft()()
            return
        self.seconds, _, do = heapq.heappop(self._later)
        do()

    @staticmethod
    def _watches(
        calls: Sequence[Call], until: str, groups: Sequence[Sequence[Call]]
    ) -> list[Watch]:
        left = [call for call in calls if not call.done()]
        failed = len(left) < len(calls) and any(
            call.exception(timeout=0) is not None for call in calls if call.done()
        )
        if groups or until == FIRST_EXCEPTION:
            first = [
                Watch(len(left) if until == FIRST_EXCEPTION else 1 + len(left), on_failure=True)
            ]
            first[0].over |= failed
        elif until == ALL_COMPLETED:
            first = [Watch(len(left), on_failure=False)]
        else:
            assert until == FIRST_COMPLETED, until
            first = [Watch(int(len(left) == len(calls)), on_failure=False)]
        for call in left:
            call.watches = [*first]  # type: ignore[attr-defined]  # all are of this clock
        for group in groups:
            own = [call for call in group if not call.done()]
            watch = Watch(len(own), on_failure=False)
            for call in own:
                call.watches.append(watch)  # type: ignore[attr-defined]
            first.append(watch)
        return first
