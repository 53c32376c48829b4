"""What each step of a run took, read from its events. Called by `run`; `blame` says what was waited for."""

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rljob_runtime.dock.stats import ROOM
from rljob_runtime.record.event_types import DockEvent, PassTimes, PhaseEvent, ReshardEvent, Rows
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.report.analysis.blame import INFERENCE, Activity, blamed
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.totals import number

PARTS = ("generate", "tail", "inference", "reward", "update", "reshard", "dock", "other")
PART_OF = {
    **dict.fromkeys(INFERENCE, "inference"),
    "sync": "reshard",
    "critic": "update",
}
MEETING = ("update", "critic")
"""States whose workers all end together."""
TAIL_SHARE = 0.2
"""Of a step's samples: the tail is the time in which no more than these are still generated."""
LENGTHS = ("mean", "p80", "max")
RESHARD_PARTS = (
    "gather_seconds",
    "select_seconds",
    "swap_waited_seconds",
    "back_seconds",
    "overlap",
    "check_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Seconds of a step. blamed: by part, in which the step waited for it; their sum is `seconds`. busy: by
    state, a worker's mean without its waits in the dock. half: from the start of the generation until half of
    its samples were there; tail: from four fifths of them on. waits: by state and what was waited for, a
    worker's mean. lengths: of responses, in tokens, those of LENGTHS that are known. reshard: of its parts.
    passes: tokens and seconds of some of the `num_passes` of the update that a rank made."""

    seconds: float
    blamed: Mapping[str, float]
    busy: Mapping[str, float]
    half: float = 0.0
    tail: float = 0.0
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    lengths: Mapping[str, float] = field(default_factory=dict)
    reshard: Mapping[str, float] = field(default_factory=dict)
    passes: tuple[tuple[float, float], ...] = ()
    num_passes: float = 0.0


def median_figures(steps: Sequence[StepFigures]) -> StepFigures:
    """The typical step: medians of each figure, and the passes of all steps."""
    return StepFigures(
        seconds=statistics.median(step.seconds for step in steps),
        blamed=_medians([step.blamed for step in steps]),
        busy=_medians([step.busy for step in steps]),
        half=statistics.median(step.half for step in steps),
        tail=statistics.median(step.tail for step in steps),
        waits={
            state: _medians([step.waits.get(state, {}) for step in steps])
            for state in {state for step in steps for state in step.waits}
        },
        lengths=_medians([step.lengths for step in steps if step.lengths]),
        reshard=_medians([step.reshard for step in steps if step.reshard]),
        passes=tuple(one for step in steps for one in step.passes),
        num_passes=statistics.median(step.num_passes for step in steps),
    )


def step_figures(history: RunHistory, step: int) -> StepFigures:
    """Of one step that is done."""
    event = history.steps[step]
    window = StageSpan(start=event.time - event.seconds, end=event.time)
    phases = [phase for found in history.phases.values() for phase in found]
    inside = [p for p in phases if p.end > window.start and p.start < window.end]
    inside = [phase for phase in inside if not phase.evaluation]
    dock = history.docks.get(step) or DockEvent(step=step)
    activities = _activities(inside, window, dock)
    half, tail = _generation(activities.get("generate"), dock.rows)
    waits = _waits(dock, activities)
    passes = event.passes or PassTimes()
    return StepFigures(
        seconds=event.seconds,
        blamed=_parts(activities, window, waits, tail),
        busy={state: _busy(activity) for state, activity in activities.items()},
        half=half,
        tail=tail.seconds if tail else 0.0,
        waits=waits,
        lengths={
            name: number(event.metrics[f"response_length/{name}"])
            for name in LENGTHS
            if f"response_length/{name}" in event.metrics
        },
        reshard=_reshard_parts(history.reshards.get(step)),
        passes=tuple(zip(passes.tokens, passes.seconds, strict=True)),
        num_passes=passes.count,
    )


def _activities(
    phases: Sequence[PhaseEvent], window: StageSpan, dock: DockEvent
) -> dict[str, Activity]:
    """By state, clipped to the window."""
    found = {}
    for state in {phase.name for phase in phases}:
        own = [phase for phase in phases if phase.name == state]
        begins = [_begins(phase, own) for phase in own]
        spans = tuple(
            StageSpan(start=max(start, window.start), end=min(phase.end, window.end))
            for start, phase in zip(begins, own, strict=True)
        )
        before = sum(_gap(phase, phases, window) for phase in own)
        waited = _claim_seconds(dock, state) * len(own) / _claimers(dock, state, len(own))
        found[state] = Activity(spans=spans, waited=max(0.0, waited - before) / len(own))
    return found


def _begins(phase: PhaseEvent, own: Sequence[PhaseEvent]) -> float:
    """When a phase does what others do not wait for: workers that train meet, so the last to begin is waited
    for by those before it, by whatever kept it."""
    if phase.name not in MEETING:
        return phase.start
    return max(p.start for p in own if p.step == phase.step)


def _gap(phase: PhaseEvent, phases: Iterable[PhaseEvent], window: StageSpan) -> float:
    """Seconds before a phase in which its worker had nothing else to do: it may have waited for the first
    rows then, which is not of the phase."""
    worker = phase.role, phase.device
    ends = [
        other.end
        for other in phases
        if (other.role, other.device) == worker and other.end <= phase.start
    ]
    return max(0.0, phase.start - max([window.start, *ends]))


def _claim_seconds(dock: DockEvent, state: str) -> float:
    return dock.states[state].wait_seconds if state in dock.states else 0.0


def _claimers(dock: DockEvent, state: str, workers: int) -> int:
    """Workers that claim: the first of those that share a model."""
    paths = dock.data_paths.get(state, {})
    warehouses = max(len(dock.warehouses), 1)
    claimers = -(-sum(paths.values()) // warehouses)
    return min(claimers, workers) or workers


def _waits(dock: DockEvent, activities: Mapping[str, Activity]) -> dict[str, dict[str, float]]:
    found = {}
    for state, activity in activities.items():
        told = dock.states[state].waits if state in dock.states else {}
        claimers = _claimers(dock, state, len(activity.spans))
        found[state] = {name: seconds / claimers for name, seconds in told.items()}
    return {state: waits for state, waits in found.items() if waits}


def _busy(activity: Activity) -> float:
    return sum(span.seconds for span in activity.spans) / len(activity.spans) - activity.waited


def _generation(generate: Activity | None, rows: Rows | None) -> tuple[float, StageSpan | None]:
    """Seconds until half of the samples were there, and when the tail was."""
    done = rows.states["generate"].done if rows and "generate" in rows.states else []
    if generate is None or rows is None or not done:
        return 0.0, None
    span = StageSpan(
        start=min(s.start for s in generate.spans), end=max(s.end for s in generate.spans)
    )
    times = [rows.start + seconds for seconds in rows.seconds]
    done = list(accumulate(done, max))  # a controller that starts anew counts from 0
    first, last = (_at(times, done, moment) for moment in (span.start, span.end))
    if last <= first:
        return 0.0, None
    half, most = (
        _when(times, done, first + share * (last - first)) for share in (0.5, 1 - TAIL_SHARE)
    )
    tail = StageSpan(start=min(max(most, span.start), span.end), end=span.end)
    return min(max(half - span.start, 0.0), span.seconds), tail


def _at(times: Sequence[float], done: Sequence[int], now: float) -> int:
    """Samples that were there at the first look from `now` on."""
    return done[min(bisect_left(times, now), len(done) - 1)]


def _when(times: Sequence[float], done: Sequence[int], count: float) -> float:
    """When so many were there, straight between two looks."""
    place = min(bisect_left(done, count), len(done) - 1)
    if place == 0 or done[place] == done[place - 1]:
        return times[place]
    share = (count - done[place - 1]) / (done[place] - done[place - 1])
    return times[place - 1] + share * (times[place] - times[place - 1])


def _parts(
    activities: Mapping[str, Activity],
    window: StageSpan,
    waits: Mapping[str, Mapping[str, float]],
    tail: StageSpan | None,
) -> dict[str, float]:
    """Blame by part. What a state waited for room in a full dock is the dock's."""
    parts = dict.fromkeys(PARTS, 0.0)
    states = blamed(_with_tail(activities, tail), window)
    for state, seconds in states.items():
        room = min(seconds, waits.get(state, {}).get(ROOM, 0.0))
        parts["dock"] += room
        parts[PART_OF.get(state, state)] += seconds - room
    parts["other"] = max(0.0, window.seconds - sum(states.values()))
    return parts


def _with_tail(
    activities: Mapping[str, Activity], tail: StageSpan | None
) -> Mapping[str, Activity]:
    """The generation cut in two at the beginning of its tail."""
    if tail is None:
        return activities
    spans = activities["generate"].spans
    before = tuple(StageSpan(start=s.start, end=min(s.end, tail.start)) for s in spans)
    after = tuple(StageSpan(start=max(s.start, tail.start), end=s.end) for s in spans)
    parts = {"generate": Activity(spans=before), "tail": Activity(spans=after)}
    return {**activities, **parts}


def _reshard_parts(reshard: ReshardEvent | None) -> dict[str, float]:
    """What the event has of these."""
    parts = {name: getattr(reshard, name, None) for name in RESHARD_PARTS}
    return {name: part for name, part in parts.items() if part is not None}


def _medians(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for one in found for name in one}
    return {name: statistics.median(one.get(name, 0.0) for one in found) for name in names}
