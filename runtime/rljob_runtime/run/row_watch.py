"""How many rows are at each state of the dock, looked at again and again while a run lasts.

A thread of the driver's process asks the controllers, often in short steps and seldom in long ones, so
that a step's event has about as many points whatever its length. `launch` starts it, the driver takes
what it saw. Nothing waits for it: what cannot be asked is left out.
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
"""Between two looks; one takes a controller well under a millisecond."""
MAX_POINTS = 48
ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class RowCourse:
    """What was seen since it was last taken, at most MAX_POINTS of it: when these are there, every
    second one goes and the pause doubles; a step with few points halves it. Pure."""

    pause: float = SHORTEST_SECONDS
    seen: list[tuple[float, Mapping[str, RowCounts]]] = field(default_factory=list)

    def add(self, now: float, counts: Mapping[str, RowCounts]) -> None:
        """One look. now: unix seconds."""
        self.seen.append((now, counts))
        if len(self.seen) > MAX_POINTS:
            self.seen = self.seen[::2]
            self.pause *= 2

    def take(self) -> Rows | None:
        """The field `rows` of the dock's event; the next one begins where this one ends."""
        seen, self.seen = self.seen, self.seen[-1:]
        if len(seen) < MAX_POINTS // 4:
            self.pause = max(SHORTEST_SECONDS, self.pause / 2)
        if not seen:
            return None
        start, first = seen[0]
        return Rows(
            start=start,
            seconds=[round(now - start, 3) for now, _ in seen],
            states={
                state: StateRows(
                    lacking=[counts[state].lacking for _, counts in seen],
                    ready=[counts[state].ready for _, counts in seen],
                    leased=[counts[state].leased for _, counts in seen],
                    done=_since(
                        first[state].acknowledged,
                        [counts[state].acknowledged for _, counts in seen],
                    ),
                )
                for state in first
            },
        )


def _since(first: int, counts: list[int]) -> list[int]:
    """Growth of a count; one that fell belongs to a controller that started anew, from 0."""
    return [count - first if count >= first else count for count in counts]


class Looks(Protocol):
    """Of what the driver takes what was seen."""

    def take(self) -> Rows | None:
        """Since the last call, as the field `rows` of the dock's event."""


class RowWatch:
    """Watches a dock between its start and its end; a context manager. tell: called with each look."""

    def __init__(self, dock: DockAddress, tell: Callable[[Mapping[str, RowCounts]], None]) -> None:
        self._access = DockAccess(
            dock, owner="watch", timeout_seconds=ANSWER_SECONDS, shared_memory=None
        )
        self._tell = tell
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
        """What was seen since the last call, as the field `rows` of the dock's event."""
        with self._lock:
            return self._course.take()

    def _run(self) -> None:
        while not self._ended.wait(self._course.pause):
            now = time.time()
            try:
                counts = self._access.rows_by_state(timeout_seconds=ANSWER_SECONDS)
            except DockError:
                continue  # a controller that starts anew
            self._tell(counts)
            with self._lock:
                self._course.add(now, counts)
        self._access.close()
