"""Virtual time: a queue of future events, and the calls that wait for them.

The driver runs on it in a single thread: while it waits for calls, the clock processes the events before they
end. Work that takes time is a generator, which yields seconds, or a call whose result it waits for.
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

MIN_WAIT_SECONDS = 10.0
"""Minimum length of a wait for calls: between events nothing changes that a shorter wait could observe."""

Work = Generator[Any, Any, Any]
"""Yields seconds that pass, or a `VirtualCall`, whose result is sent back. Returns the result of the work."""


class PendingWait:
    """A wait for a number of calls. over: whether it has ended."""

    __slots__ = ("left", "on_failure", "over")

    def __init__(self, left: int, *, on_failure: bool) -> None:
        self.left, self.on_failure = left, on_failure
        self.over = left <= 0

    def ended(self, *, failed: bool) -> None:
        """Record that one of the calls has ended."""
        self.left -= 1
        self.over |= self.left <= 0 or (failed and self.on_failure)


class VirtualCall(Future[Any]):
    """A call that ends in virtual time. watches: the waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[PendingWait] = []

    def settle(self, value: Any) -> None:
        """End the call with a result."""
        self.set_result(value)
        for watch in self.watches:
            watch.ended(failed=False)

    def fail(self, error: BaseException) -> None:
        """End the call with an error."""
        self.set_exception(error)
        for watch in self.watches:
            watch.ended(failed=True)


class VirtualClock:
    """A clock whose time passes only by events. begins: unix seconds. events: number processed so far."""

    def __init__(self, begins: float) -> None:
        self.seconds = 0.0
        self.events = 0
        self._begins = begins
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._numbers = itertools.count()

    def unix_seconds(self) -> float:
        """Return the virtual time in unix seconds."""
        return self._begins + self.seconds

    def monotonic(self) -> float:
        """Return the virtual seconds since the start."""
        return self.seconds

    def sleep(self, seconds: float) -> None:
        """Process the events of the next seconds."""
        self._pass(self.seconds + seconds, ())

    def wait(
        self, calls: Sequence[Call], *, seconds: float, until: str, groups: Sequence[Sequence[Call]]
    ) -> None:
        """Process events until the calls have ended as `until` requires, or the seconds have passed."""
        if seconds <= 0:
            return
        groups = [group for group in groups if group]
        watches = self._watches(calls, until, groups)
        self._pass(self.seconds + max(seconds, MIN_WAIT_SECONDS if calls else 0.0), watches)

    def soon(self, do: Callable[[], None]) -> None:
        """Run the function at the current time, after all events that are already due."""
        self._soon.append(do)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Run the function after so many seconds."""
        heapq.heappush(self._later, (self.seconds + seconds, next(self._numbers), do))

    def carry_out(self, work: Work, call: VirtualCall) -> None:
        """Begin work; the call ends with it."""
        self._go_on(work, call, None)

    def _go_on(self, work: Work, call: VirtualCall, value: Any, error: Any = None) -> None:
        """Continue work until it waits for a call that has not ended."""
        while True:
            if call.done():  # its worker has died
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

    def _pass(self, end: float, watches: Sequence[PendingWait]) -> None:
        """Process events until a wait is over, including all events of that moment, or until the end."""
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
    ) -> list[PendingWait]:
        unfinished = [call for call in calls if not call.done()]
        failed = len(unfinished) < len(calls) and any(
            call.exception(timeout=0) is not None for call in calls if call.done()
        )
        if groups or until == FIRST_EXCEPTION:
            waits = [
                PendingWait(
                    len(unfinished) if until == FIRST_EXCEPTION else 1 + len(unfinished),
                    on_failure=True,
                )
            ]
            waits[0].over |= failed
        elif until == ALL_COMPLETED:
            waits = [PendingWait(len(unfinished), on_failure=False)]
        else:
            assert until == FIRST_COMPLETED, until
            waits = [PendingWait(int(len(unfinished) == len(calls)), on_failure=False)]
        for call in unfinished:
            call.watches = [*waits]  # type: ignore[attr-defined]  # all are of this clock
        for group in groups:
            pending = [call for call in group if not call.done()]
            watch = PendingWait(len(pending), on_failure=False)
            for call in pending:
                call.watches.append(watch)  # type: ignore[attr-defined]
            waits.append(watch)
        return waits
