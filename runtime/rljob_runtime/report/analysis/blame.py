"""Which state a step waits for at each moment: the critical path through its states, backwards. Pure.

Called by `step_figures`. The step ends with its last state. While a state works, the step waits for it; while
it waits in the dock, or has not started, the step waits for the states that it takes its rows from.
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
"""States that each state takes its rows from; a sync takes weights. `tail`: the end of generation."""
LAST = "sync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The time in which a state ran.

    spans: of all its workers. waited: seconds within them that a worker waited in the dock, mean over the
    workers.
    """

    spans: tuple[StageSpan, ...]
    waited: float = 0.0

    def runs(self, time: float) -> bool:
        """Return whether a worker of the state runs at this time."""
        return any(span.start <= time < span.end for span in self.spans)


def blame_by_state(activities: Mapping[str, Activity], window: StageSpan) -> dict[str, float]:
    """Return the seconds of the window by the state that the step waits for; other time is omitted."""
    return _Blame(activities, _moments(activities, window)).seconds()


def _moments(activities: Mapping[str, Activity], window: StageSpan) -> list[float]:
    """Return the times between which no span starts or ends."""
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
                for time, seconds in self._intervals()
                if activity.runs(time) and self._active_upstream(state, time)
            )
            self.waiting[state] = min(1.0, activity.waited / overlap) if overlap else 0.0

    def seconds(self) -> dict[str, float]:
        """Return the seconds by the state that the step waits for."""
        seconds_of: dict[str, float] = {}
        for time, seconds in self._intervals():
            for state, share in self._shares(LAST, time).items():
                seconds_of[state] = seconds_of.get(state, 0.0) + share * seconds
        return seconds_of

    def _intervals(self) -> list[tuple[float, float]]:
        """Return (midpoint, seconds) of each interval."""
        return [((a + b) / 2, b - a) for a, b in pairwise(self.moments)]

    def _shares(self, state: str, time: float) -> dict[str, float]:
        """Shares of the interval by state, seen from this state."""
        upstream = self._upstream_shares(state, time)
        if not self._runs(state, time):
            return upstream
        waits = self.waiting[state] if upstream else 0.0
        if not waits:
            return {state: 1.0}
        return {state: 1.0 - waits} | {name: waits * share for name, share in upstream.items()}

    def _upstream_shares(self, state: str, time: float) -> dict[str, float]:
        active = self._active_upstream(state, time)
        return self._shares(max(active, key=self._end), time) if active else {}

    def _active_upstream(self, state: str, time: float) -> list[str]:
        """States upstream that run, or wait for a running state further upstream."""
        return [
            name
            for name in UPSTREAM.get(state, ())
            if self._runs(name, time) or self._active_upstream(name, time)
        ]

    def _runs(self, state: str, time: float) -> bool:
        return state in self.activities and self.activities[state].runs(time)

    def _end(self, state: str) -> float:
        activity = self.activities.get(state)
        return max((span.end for span in activity.spans), default=0.0) if activity else 0.0
