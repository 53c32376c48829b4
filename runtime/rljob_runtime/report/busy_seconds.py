"""Busy seconds of each worker so far, accumulated from phase events. No clock, no I/O.

Called by `run_figures`. `busy` computes the shares of a finished period; over a full run both agree.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from rljob_runtime.record.event_types import PhaseEvent

Worker = tuple[str, str]
"""Role and device."""
WINDOW_STEPS = 10
REMEMBERED = 256
"""Intervals that are stored per worker; a phase that overlaps one arrives with it or soon after."""


@dataclass(slots=True)
class _WorkerIntervals:
    """The busy time of one worker.

    worked: seconds of all phases without their waits. covered: seconds in which a phase ran. first: start of
    the first phase, last: end of the last one; unix seconds.
    """

    first: float
    last: float = 0.0
    worked: float = 0.0
    covered: float = 0.0
    stretches: list[tuple[float, float]] = field(default_factory=list)

    def cover(self, start: float, end: float) -> None:
        """Count the time between start and end that was not covered yet."""
        touching = [s for s in self.stretches if s[0] <= end and s[1] >= start]
        for stretch in touching:
            self.stretches.remove(stretch)
            self.covered -= stretch[1] - stretch[0]
        start = min([start, *(s[0] for s in touching)])
        end = max([end, *(s[1] for s in touching)])
        self.covered += end - start
        insort(self.stretches, (start, end))
        del self.stretches[:-REMEMBERED]


@dataclass(slots=True)
class BusySeconds:
    """The busy time of all workers of a run, since its first phase."""

    _times: dict[Worker, _WorkerIntervals] = field(default_factory=dict)
    _resized: float = 0.0
    _marks: deque[tuple[float, dict[Worker, float]]] = field(
        default_factory=lambda: deque(maxlen=WINDOW_STEPS + 1)
    )

    def add(self, phase: PhaseEvent) -> None:
        """Add a `phase` event. Its waits for samples are not counted."""
        start, end = phase.start, phase.end
        if not self._marks:
            self._marks.append((start, {}))
        time = self._times.setdefault(_worker(phase), _WorkerIntervals(first=start))
        time.last = max(time.last, end)
        time.worked += max(0.0, end - start - phase.waited_seconds)
        time.cover(start, end)

    def seconds(self) -> dict[Worker, float]:
        """Return the busy seconds of each worker."""
        return {worker: min(t.worked, t.covered) for worker, t in self._times.items()}

    def bubbles(self, step_end: float) -> dict[Worker, float]:
        """Return the idle share of each worker since WINDOW_STEPS calls ago, or since it joined.

        step_end: unix seconds.
        """
        self._marks.append((step_end, self.seconds()))
        since, earlier = self._marks[0]
        idle_shares = {}
        for worker, busy in self._marks[-1][1].items():
            time = self._times[worker]
            lasted = step_end - max(since, time.first)
            if lasted > 0 and time.last > self._resized:
                worked = busy - earlier.get(worker, 0.0)
                idle_shares[worker] = min(1.0, max(0.0, 1 - worked / lasted))
        return idle_shares

    def resize(self, time: float) -> None:
        """Record that devices joined or left. Workers without work after this time are dropped."""
        self._resized = time


def _worker(phase: PhaseEvent) -> Worker:
    return phase.role or phase.name, "" if phase.device is None else str(phase.device)
