"""Which state a step waits for at each moment: the critical path through its states, backwards. Pure.

Called by `step_figures`. The step ends when its last state does. While a state works, the step waits for it;
while it waits in the dock, or has not begun, the step waits for the states that it takes its rows from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from rljob_runtime.record.spans import StageSpan

INFERENCE = ("reference", "teacher", "values", "reward-model")
UPSTREAM: Mapping[str, tuple[str, ...]] = {
    "generate": (),
    "tail": ("generate",),
    **dict.fromkeys(INFERENCE, ("tail",)),
    "reward": ("reward-model", "tail"),
    "critic": ("reward", *INFERENCE),
    "update": ("critic", "reward", *INFERENCE),
    "sync": ("update",),
}
"""States that each one takes its rows from; a sync takes weights. `tail`: the end of generation."""
LAST = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """When a state ran. spans: of all its workers. waited: seconds within them that a worker spent waiting in
    the dock, mean over the workers."""

    spans: tuple[StageSpan, ...]
    waited: float = 0.0

    def runs(self, now: float) -> bool:
        """Whether a worker of it does."""
        return any(span.start <= now < span.end for span in self.spans)


def blamed(activities: Mapping[str, Activity], window: StageSpan) -> dict[str, float]:
    """Seconds of the window by the state that is waited for; the rest is nobody's."""
    return _Blame(activities, _moments(activities, window)).seconds()


def _moments(activities: Mapping[str, Activity], window: StageSpan) -> list[float]:
    """Between two of them nothing begins or ends."""
    edges = {window.start, window.end}
    for span in (span for activity in activities.values() for span in activity.spans):
        edges |= {min(max(edge, window.start), window.end) for edge in (span.start, span.end)}
    return sorted(edges)


@dataclass(slots=True)
class _Blame:
    activities: Mapping[str, Activity]
    moments: list[float]
    waiting: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for state, activity in self.activities.items():
            overlap = sum(
                seconds
                for now, seconds in self._pieces()
                if activity.runs(now) and self._active_before(state, now)
            )
            self.waiting[state] = min(1.0, activity.waited / overlap) if overlap else 0.0

    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for now, seconds in self._pieces():
            for state, share in self._at(LAST, now).items():
                found[state] = found.get(state, 0.0) + share * seconds
        return found

    def _pieces(self) -> list[tuple[float, float]]:
        """(a moment within, seconds)."""
        return [((a + b) / 2, b - a) for a, b in pairwise(self.moments)]

    def _at(self, state: str, now: float) -> dict[str, float]:
        """Shares of the moment by state, seen from this one."""
        upstream = self._before(state, now)
        if not self._runs(state, now):
            return upstream
        waits = self.waiting[state] if upstream else 0.0
        if not waits:
            return {state: 1.0}
        return {state: 1.0 - waits} | {name: waits * share for name, share in upstream.items()}

    def _before(self, state: str, now: float) -> dict[str, float]:
        active = self._active_before(state, now)
        return self._at(max(active, key=self._end), now) if active else {}

    def _active_before(self, state: str, now: float) -> list[str]:
        """States upstream that run, or wait for one further up that does."""
        return [
            name
            for name in UPSTREAM.get(state, ())
            if self._runs(name, now) or self._active_before(name, now)
        ]

    def _runs(self, state: str, now: float) -> bool:
        return state in self.activities and self.activities[state].runs(now)

    def _end(self, state: str) -> float:
        known = self.activities.get(state)
        return max((span.end for span in known.spans), default=0.0) if known else 0.0
