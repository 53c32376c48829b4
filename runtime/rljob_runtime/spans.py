"""When a stage ran on a worker: what the timeline of the report is drawn from."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Unix seconds."""

    start: float
    end: float

    @classmethod
    def since(cls, start: float) -> "Span":
        """From `start` until now."""
        return cls(start=start, end=time.time())

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class Stopwatch:
    """Seconds in which something ran, in one thread; another may ask meanwhile. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._run: tuple[float, float | None] = 0.0, None  # of what ended, and when the rest began

    @contextmanager
    def running(self) -> Iterator[None]:
        """It runs in the body."""
        began = self._clock()
        self._run = self._run[0], began
        try:
            yield
        finally:
            self._run = self._run[0] + self._clock() - began, None

    def seconds(self) -> float:
        """So far, what runs now included."""
        ended, began = self._run
        return ended if began is None else ended + self._clock() - began
