"""When a stage ran on a worker: what the timeline of the report is drawn from."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rljob_runtime.devices.own_time import Passes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """What a device did by itself. seconds: without what it waited for others, their rows or collectives.
    passes: one after the other over the tokens; of generation, the tokens of the longest response."""

    seconds: float
    tokens: int
    passes: int

    @classmethod
    def of(cls, passes: Passes) -> "OwnWork | None":
        """None where none was timed."""
        if not passes.count:
            return None
        return cls(seconds=passes.seconds(), tokens=passes.tokens, passes=passes.count)

    def __add__(self, other: "OwnWork") -> "OwnWork":
        return OwnWork(
            seconds=self.seconds + other.seconds,
            tokens=self.tokens + other.tokens,
            passes=self.passes + other.passes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Unix seconds. waited: of them, in which the worker had no samples to work on. own: of its device, where
    that can be told from what others do."""

    start: float
    end: float
    waited: float = 0.0
    own: OwnWork | None = None

    @classmethod
    def since(cls, start: float, own: OwnWork | None = None, *, waited: float = 0.0) -> "Span":
        """From `start` until now."""
        return cls(start=start, end=time.time(), waited=waited, own=own)

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

    def span(self, own: OwnWork | None = None) -> Span:
        """Until now."""
        now = time.time()
        start = now if self._start is None else self._start
        return Span(start=start, end=now, waited=self._waiting.seconds(), own=own)
