"""Looking again for some microseconds before sleeping, as long as that pays.

On a machine with a free core an answer often comes sooner than a sleeper would wake up. Whoever looked in
vain sleeps at once the next times, ever more of them: where no core is free, looking keeps the other side
from answering.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

SECONDS = 60e-6
"""For which it looks; about twice what waking up costs."""
MOST_SLEPT = 256
"""Times that it sleeps at once after many in vain."""


class BusyLook:
    """Looks for what one caller waits for."""

    def __init__(self) -> None:
        self._sleeps = self._slept = 0

    def until(self, look: Callable[[], Sequence[T]]) -> Sequence[T]:
        """What was found, nothing where that did not come in time or is not worth trying."""
        if self._slept < self._sleeps:
            self._slept += 1
            return ()
        self._slept = 0
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            if found := look():
                self._sleeps = 0
                return found
        self._sleeps = min(MOST_SLEPT, 2 * self._sleeps + 1)
        return ()


class BusySelector(selectors.DefaultSelector):
    """Of a loop, that serves what comes within microseconds of what it has just served."""

    def __init__(self) -> None:
        super().__init__()
        self._look = BusyLook()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See selectors."""
        if timeout is None or timeout > 0:
            found = self._look.until(lambda: super(BusySelector, self).select(0))
            if found:
                return list(found)
        return super().select(timeout)


def new_loop() -> asyncio.SelectorEventLoop:
    """A loop with such a selector."""
    return asyncio.SelectorEventLoop(BusySelector())
