"""When a stage ran on a worker: what the timeline of the report is drawn from."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Unix seconds. waited: of them, in which the worker had no samples to work on."""

    start: float
    end: float
    waited: float = 0.0

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


class Work:
    """What a worker does with a batch, from the first samples that it has; in one thread."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._waiting = Stopwatch()

    def begin(self) -> None:
        """There are samples; again, it changes nothing."""
        if self._start is None:
            self._start = time.time()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body waits for samples, which counts once there were some."""
        if self._start is None:
            yield
        else:
            with self._waiting.running():
                yield

    def each(self, parts: Iterable[T]) -> Iterator[T]:
        """The parts of the batch; between two of them it waits."""
        found = iter(parts)
        while True:
            with self.waiting():
                part = next(found, None)
            if part is None:
                return
            self.begin()
            yield part

    def span(self) -> Span:
        """Until now."""
        now = time.time()
        start = now if self._start is None else self._start
        return Span(start=start, end=now, waited=self._waiting.seconds())
