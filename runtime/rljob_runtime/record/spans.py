"""Times at which stages ran on a worker; the report draws its timeline from them."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from rljob_runtime.devices.own_time import PassTimer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceWork:
    """The work that one device did, without its waits for rows or collectives of other devices.

    passes: number of consecutive passes over the tokens; for generation, the tokens of the longest response.
    """

    seconds: float
    tokens: int
    passes: int

    @classmethod
    def of(cls, passes: PassTimer) -> "DeviceWork | None":
        """Return the work of these passes, or None if none was timed."""
        if not passes.count:
            return None
        return cls(seconds=passes.seconds(), tokens=passes.tokens, passes=passes.count)

    def __add__(self, other: "DeviceWork") -> "DeviceWork":
        return DeviceWork(
            seconds=self.seconds + other.seconds,
            tokens=self.tokens + other.tokens,
            passes=self.passes + other.passes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """The time in which a stage ran on a worker, in unix seconds.

    waited: seconds of it without samples to process. device_work: work of the worker's own device, if it can
    be distinguished from that of other devices.
    """

    start: float
    end: float
    waited: float = 0.0
    device_work: DeviceWork | None = None

    @classmethod
    def since(
        cls, start: float, device_work: DeviceWork | None = None, *, waited: float = 0.0
    ) -> "StageSpan":
        """Return the span from `start` until the current time."""
        return cls(start=start, end=time.time(), waited=waited, device_work=device_work)

    @property
    def seconds(self) -> float:
        """Duration of the span."""
        return self.end - self.start


class Stopwatch:
    """Measures the seconds in which a block ran in one thread; other threads may read it. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        # seconds of ended blocks, and start of the running one
        self._run: tuple[float, float | None] = 0.0, None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the time of the block."""
        began = self._clock()
        self._run = self._run[0], began
        try:
            yield
        finally:
            self._run = self._run[0] + self._clock() - began, None

    def seconds(self) -> float:
        """Seconds measured so far, including a running block."""
        ended, began = self._run
        return ended if began is None else ended + self._clock() - began


class BatchTimer:
    """Measures a worker's work on a batch from its first samples on; used by one thread."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._waiting = Stopwatch()

    def begin(self) -> None:
        """Start the timer when the first samples arrive. Later calls change nothing."""
        if self._start is None:
            self._start = time.time()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the block as waiting for samples, unless none have arrived yet."""
        if self._start is None:
            yield
        else:
            with self._waiting.running():
                yield

    def each(self, shards: Iterable[T]) -> Iterator[T]:
        """Yield the shards of the batch and count the time between them as waiting."""
        iterator = iter(shards)
        while True:
            with self.waiting():
                shard = next(iterator, None)
            if shard is None:
                return
            self.begin()
            yield shard

    def span(self, device_work: DeviceWork | None = None) -> StageSpan:
        """Return the span until the current time."""
        end = time.time()
        start = end if self._start is None else self._start
        return StageSpan(
            start=start, end=end, waited=self._waiting.seconds(), device_work=device_work
        )
