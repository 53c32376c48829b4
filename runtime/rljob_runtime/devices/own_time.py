"""Compute time of a device in the passes of a state, without its waits for other ranks.

States mark their passes, and `collective_notes` marks waits for collectives. An accelerator runs behind its
host, so both ends of each interval are events in its stream: its backend sets `OWN_TIME.clock`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

MOST_PASSES = 16
"""Limit of timed passes per state and step: enough for an estimate, with a bounded number of marks."""

Interval = tuple[Any, Any]
"""Start and end mark of the clock."""


class IntervalClock(Protocol):
    """Creates marks and measures the time between them."""

    def mark(self) -> Any:
        """Return a mark after all work that is queued on the device so far."""
        ...

    def seconds(self, since: Any, until: Any) -> float:
        """Return the seconds between two marks, once the device has reached the second."""
        ...


class HostClock:
    """A clock for devices that compute synchronously with the host."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        return until - since


class OwnTime:
    """Records the waits of this process. clock: of its device."""

    def __init__(self) -> None:
        self.clock: IntervalClock = HostClock()
        self._waits: list[Interval] | None = None
        self._waiting = False

    def begin_wait(self) -> Any:
        """Start a wait for a collective and return the mark for `end_wait`; None outside of passes, and
        within another wait."""
        if self._waits is None or self._waiting:
            return None
        self._waiting = True
        return self.clock.mark()

    def end_wait(self, since: Any) -> None:
        """End the wait that `begin_wait` started."""
        if since is not None:
            self._waiting = False
            if self._waits is not None:
                self._waits.append((since, self.clock.mark()))

    @contextmanager
    def recording_waits(self) -> Iterator[list[Interval]]:
        """Yield a list that records the waits of the body."""
        waits: list[Interval] = []
        self._waits = waits
        try:
            yield waits
        finally:
            self._waits = None


OWN_TIME = OwnTime()
"""The waits of this process, which has one device."""


class PassTimer:
    """Times the passes of one state over a batch."""

    def __init__(self, own_time: OwnTime = OWN_TIME) -> None:
        self._own_time = own_time
        self._timed: list[tuple[Interval, list[Interval]]] = []
        self.tokens = 0

    @property
    def count(self) -> int:
        """Return the number of timed passes."""
        return len(self._timed)

    @contextmanager
    def timed_pass(self, tokens: int) -> Iterator[None]:
        """Time a pass over `tokens` tokens. Passes without tokens, and those after the first MOST_PASSES, do
        not count."""
        if not tokens or self.count == MOST_PASSES:
            yield
            return
        with self._own_time.recording_waits() as waits:
            start_mark = self._own_time.clock.mark()
            yield
            self._timed.append(((start_mark, self._own_time.clock.mark()), waits))
        self.tokens += tokens

    def seconds(self) -> float:
        """Return the seconds of all timed passes without waits; block until the device has ended the last
        pass."""
        clock = self._own_time.clock
        return sum(
            clock.seconds(*interval) - sum(clock.seconds(*wait) for wait in waits)
            for interval, waits in self._timed
        )
