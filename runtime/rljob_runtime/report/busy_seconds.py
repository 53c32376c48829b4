"""How long each worker has had work so far, folded from phases as they are told. No clock, no I/O.

Called by `run_figures`. `busy` has the shares of a time that has ended; over a whole run both agree.
"""

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from rljob_runtime.record.event_types import PhaseEvent

Worker = tuple[str, str]
"""Role and device."""
WINDOW_STEPS = 10
REMEMBERED = 256
"""Stretches of time of a worker; a phase that overlaps one is told with it or soon after."""


@dataclass(slots=True)
class _Time:
    """worked: seconds of all phases without their waits. covered: seconds in which one ran. first: start of
    the first phase, last: end of the last one; unix seconds."""

    first: float
    last: float = 0.0
    worked: float = 0.0
    covered: float = 0.0
    stretches: list[tuple[float, float]] = field(default_factory=list)

    def cover(self, start: float, end: float) -> None:
        """Count what of it was not covered yet."""
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
    """Of all workers of a run, since its first phase."""

    _times: dict[Worker, _Time] = field(default_factory=dict)
    _resized: float = 0.0
    _marks: deque[tuple[float, dict[Worker, float]]] = field(
        default_factory=lambda: deque(maxlen=WINDOW_STEPS + 1)
    )

    def add(self, phase: PhaseEvent) -> None:
        """Take up an event `phase`. What it waited for samples is no work."""
        start, end = phase.start, phase.end
        if not self._marks:
            self._marks.append((start, {}))
        time = self._times.setdefault(_worker(phase), _Time(first=start))
        time.last = max(time.last, end)
        time.worked += max(0.0, end - start - phase.waited_seconds)
        time.cover(start, end)

    def seconds(self) -> dict[Worker, float]:
        """With work, of each worker."""
        return {worker: min(t.worked, t.covered) for worker, t in self._times.items()}

    def bubbles(self, now: float) -> dict[Worker, float]:
        """Share without work, since WINDOW_STEPS calls ago or since a worker came. now: a step's end, unix
        seconds."""
        self._marks.append((now, self.seconds()))
        since, before = self._marks[0]
        found = {}
        for worker, busy in self._marks[-1][1].items():
            time = self._times[worker]
            lasted = now - max(since, time.first)
            if lasted > 0 and time.last > self._resized:
                worked = busy - before.get(worker, 0.0)
                found[worker] = min(1.0, max(0.0, 1 - worked / lasted))
        return found

    def resize(self, now: float) -> None:
        """Devices came or left: who has no work from now on is told of no more."""
        self._resized = now


def _worker(phase: PhaseEvent) -> Worker:
    return phase.role or phase.name, "" if phase.device is None else str(phase.device)
