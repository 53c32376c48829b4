"""Samples how many rows are at each state of the dock while a run lasts.

A thread of the driver's process asks the controllers, often in short steps and seldom in long ones. A step's
event therefore has about the same number of points whatever its length. `launch` starts it, and the driver
takes its samples. Nothing waits for it: a controller that does not answer is skipped.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.access import DockAccess
from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.errors import DockError
from rljob_runtime.record.event_types import Rows, StateRows

SHORTEST_SECONDS = 0.1
"""Shortest pause between two samples; one takes a controller well under a millisecond."""
MAX_POINTS = 48
ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class RowCourse:
    """The samples since they were last taken, at most MAX_POINTS. At that limit every second one is dropped
    and the pause doubles; a step with few points halves it. Pure."""

    pause: float = SHORTEST_SECONDS
    samples: list[tuple[float, Mapping[str, RowCounts]]] = field(default_factory=list)

    def add(self, time_s: float, counts: Mapping[str, RowCounts]) -> None:
        """Add one sample. time_s: Unix seconds."""
        self.samples.append((time_s, counts))
        if len(self.samples) > MAX_POINTS:
            self.samples = self.samples[::2]
            self.pause *= 2

    def take(self) -> Rows | None:
        """Return the field `rows` of the dock's event; the next one begins where this one ends."""
        samples, self.samples = self.samples, self.samples[-1:]
        if len(samples) < MAX_POINTS // 4:
            self.pause = max(SHORTEST_SECONDS, self.pause / 2)
        if not samples:
            return None
        start, first = samples[0]
        return Rows(
            start=start,
            seconds=[round(time_s - start, 3) for time_s, _ in samples],
            states={
                state: StateRows(
                    lacking=[counts[state].lacking for _, counts in samples],
                    ready=[counts[state].ready for _, counts in samples],
                    leased=[counts[state].leased for _, counts in samples],
                    done=_growth(
                        first[state].acknowledged,
                        [counts[state].acknowledged for _, counts in samples],
                    ),
                )
                for state in first
            },
        )


def _growth(first: int, counts: list[int]) -> list[int]:
    """Return the growth of a count. A count that fell belongs to a controller that restarted from 0."""
    return [count - first if count >= first else count for count in counts]


class RowSource(Protocol):
    """The source of the driver's row counts."""

    def take(self) -> Rows | None:
        """Return the rows since the last call, as the field `rows` of the dock's event."""


class RowWatch:
    """Watches a dock between its start and its end; a context manager. on_sample: called with each sample."""

    def __init__(
        self, dock: DockAddress, on_sample: Callable[[Mapping[str, RowCounts]], None]
    ) -> None:
        self._access = DockAccess(
            dock, owner="watch", timeout_seconds=ANSWER_SECONDS, shared_memory=None
        )
        self._on_sample = on_sample
        self._course = RowCourse()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="row-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(2 * ANSWER_SECONDS)

    def take(self) -> Rows | None:
        """Return the rows since the last call, as the field `rows` of the dock's event."""
        with self._lock:
            return self._course.take()

    def _run(self) -> None:
        while not self._ended.wait(self._course.pause):
            time_s = time.time()
            try:
                counts = self._access.rows_by_state(timeout_seconds=ANSWER_SECONDS)
            except DockError:
                continue  # a controller that restarts
            self._on_sample(counts)
            with self._lock:
                self._course.add(time_s, counts)
        self._access.close()
