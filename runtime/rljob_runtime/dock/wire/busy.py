"""Busy polling for some microseconds before sleeping, as long as that pays.

On a machine with a free core an answer often arrives sooner than a sleeping process would wake up. A poller
without success sleeps directly the next times, for increasingly many calls: where no core is free, polling
delays the other side's answer.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60e-6
"""Duration of polling; about twice what waking up costs."""
MOST_SLEPT = 256
"""Maximum number of calls that sleep directly after repeated failures."""


class BusyPoller:
    """Polls for one caller."""

    def __init__(self) -> None:
        self._sleeps = self._slept = 0

    def until(self, poll: Callable[[], Sequence[T]]) -> Sequence[T]:
        """Return the results of the first successful poll, or nothing where none came in time or polling does
        not pay."""
        if self._slept < self._sleeps:
            self._slept += 1
            return ()
        self._slept = 0
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            if results := poll():
                self._sleeps = 0
                return results
        self._sleeps = min(MOST_SLEPT, 2 * self._sleeps + 1)
        return ()


class BusySelector(selectors.DefaultSelector):
    """The selector of a loop; it polls briefly for events that follow within microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self._poller = BusyPoller()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll before blocking; see `selectors.BaseSelector.select`."""
        if timeout is None or timeout > 0:
            events = self._poller.until(lambda: super(BusySelector, self).select(0))
            if events:
                return list(events)
        return super().select(timeout)


def new_loop() -> asyncio.SelectorEventLoop:
    """Return an event loop with a BusySelector."""
    return asyncio.SelectorEventLoop(BusySelector())
