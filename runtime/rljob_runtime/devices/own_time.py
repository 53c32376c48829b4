"""Seconds that a device computes by itself in the passes of a state: what it waits for others is left out.

States say what a pass is, `collective_notes` when a collective is waited for. On an accelerator, whose host
runs ahead of it, both ends of each are events in its stream, as its backend sets `OWN_TIME.clock`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

MOST_PASSES = 16
"""Of a state in a step, that are timed: enough for a pace, and no more marks than a step is to bear."""

Interval = tuple[Any, Any]
"""Two marks of the clock."""


class Clock(Protocol):
    """Where marks come from."""

    def now(self) -> Any:
        """A mark, after what the device was given so far."""
        ...

    def seconds(self, since: Any, until: Any) -> float:
        """Between two marks, once the device has come to the second."""
        ...


class HostClock:
    """Of a device that computes while its host waits."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        return until - since


class OwnTime:
    """Of this process. clock: its device's."""

    def __init__(self) -> None:
        self.clock: Clock = HostClock()
        self._waits: list[Interval] | None = None
        self._waiting = False

    def begin_wait(self) -> Any:
        """A collective is waited for from now on; the mark for `end_wait`. None outside of passes, and
        within another wait."""
        if self._waits is None or self._waiting:
            return None
        self._waiting = True
        return self.clock.now()

    def end_wait(self, since: Any) -> None:
        """It is over."""
        if since is not None:
            self._waiting = False
            if self._waits is not None:
                self._waits.append((since, self.clock.now()))

    @contextmanager
    def noting(self) -> Iterator[list[Interval]]:
        """Waits in the body."""
        waits: list[Interval] = []
        self._waits = waits
        try:
            yield waits
        finally:
            self._waits = None


OWN_TIME = OwnTime()
"""This process': it has one device."""


class Passes:
    """The passes of one state over a batch."""

    def __init__(self, own: OwnTime = OWN_TIME) -> None:
        self._own = own
        self._timed: list[tuple[Interval, list[Interval]]] = []
        self.tokens = 0

    @property
    def count(self) -> int:
        """Passes that were timed."""
        return len(self._timed)

    @contextmanager
    def one(self, tokens: int) -> Iterator[None]:
        """A pass over so many tokens, which counts among the first ones; one over none does not."""
        if not tokens or self.count == MOST_PASSES:
            yield
            return
        with self._own.noting() as waits:
            began = self._own.clock.now()
            yield
            self._timed.append(((began, self._own.clock.now()), waits))
        self.tokens += tokens

    def seconds(self) -> float:
        """Of all of them, without waits; waits until the device has ended the last."""
        clock = self._own.clock
        return sum(
            clock.seconds(*whole) - sum(clock.seconds(*wait) for wait in waits)
            for whole, waits in self._timed
        )
