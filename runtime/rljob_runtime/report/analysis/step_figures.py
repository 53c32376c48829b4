"""The durations within each step of a run, read from its events. Called by `run`; `blame` finds the waits."""

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rljob_runtime.dock.stats import ROOM
from rljob_runtime.record.event_types import DockEvent, PassTimes, PhaseEvent, ReshardEvent, Rows
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.report.analysis.blame import INFERENCE, Activity, blame_by_state
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
"""Share of a step's samples: in the tail, no more than these are still generated."""
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
    """Durations within a step, in seconds.

    blame: by part, the time that the step waited for it; they add up to `seconds`. busy: by state, a worker's
    mean without its waits in the dock. half_seconds: from the start of generation until half of its samples
    were done; tail: from four fifths of them on. waits: by waiting and awaited state, a worker's mean.
    lengths: of responses in tokens, those of LENGTHS that are known. reshard: its parts. passes: tokens and
    seconds of some of the `num_passes` passes of the update on a rank.
    """

    seconds: float
    blame: Mapping[str, float]
    busy: Mapping[str, float]
    half_seconds: float = 0.0
    tail: float = 0.0
    waits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    lengths: Mapping[str, float] = field(default_factory=dict)
    reshard: Mapping[str, float] = field(default_factory=dict)
    passes: tuple[tuple[float, float], ...] = ()
    num_passes: float = 0.0


def median_figures(steps: Sequence[StepFigures]) -> StepFigures:
    """Return the typical step: medians of each figure, and the passes of all steps."""
    return StepFigures(
        seconds=statistics.median(step.seconds for step in steps),
        blame=_medians([step.blame for step in steps]),
        busy=_medians([step.busy for step in steps]),
        half_seconds=statistics.median(step.half_seconds for step in steps),
        tail=statistics.median(step.tail for step in steps),
        waits={
            state: _medians([step.waits.get(state, {}) for step in steps])
            for state in {state for step in steps for state in step.waits}
        },
        lengths=_medians([step.lengths for step in steps if step.lengths]),
        reshard=_medians([step.reshard for step in steps if step.reshard]),
        passes=tuple(timed_pass for step in steps for timed_pass in step.passes),
        num_passes=statistics.median(step.num_passes for step in steps),
    )


def step_figures(history: RunHistory, step: int) -> StepFigures:
    """Compute the figures of one finished step."""
    event = history.steps[step]
    window = StageSpan(start=event.time - event.seconds, end=event.time)
    phases = [phase for step_phases in history.phases.values() for phase in step_phases]
    inside = [p for p in phases if p.end > window.start and p.start < window.end]
    inside = [phase for phase in inside if not phase.evaluation]
    dock = history.docks.get(step) or DockEvent(step=step)
    activities = _activities(inside, window, dock)
    half_seconds, tail = _generation(activities.get("generate"), dock.rows)
    waits = _waits(dock, activities)
    passes = event.passes or PassTimes()
    return StepFigures(
        seconds=event.seconds,
        blame=_parts(activities, window, waits, tail),
        busy={state: _busy(activity) for state, activity in activities.items()},
        half_seconds=half_seconds,
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
    """Return the activities by state, clipped to the window."""
    activities = {}
    for state in {phase.name for phase in phases}:
        state_phases = [phase for phase in phases if phase.name == state]
        begins = [_begins(phase, state_phases) for phase in state_phases]
        spans = tuple(
            StageSpan(start=max(start, window.start), end=min(phase.end, window.end))
            for start, phase in zip(begins, state_phases, strict=True)
        )
        idle_before = sum(_gap(phase, phases, window) for phase in state_phases)
        waited = (
            _claim_seconds(dock, state)
            * len(state_phases)
            / _claimers(dock, state, len(state_phases))
        )
        activities[state] = Activity(
            spans=spans, waited=max(0.0, waited - idle_before) / len(state_phases)
        )
    return activities


def _begins(phase: PhaseEvent, state_phases: Sequence[PhaseEvent]) -> float:
    """Return when a phase starts work that others do not wait for.

    Workers that train meet, so those before wait for the last one to start, whatever delayed it.
    """
    if phase.name not in MEETING:
        return phase.start
    return max(p.start for p in state_phases if p.step == phase.step)


def _gap(phase: PhaseEvent, phases: Iterable[PhaseEvent], window: StageSpan) -> float:
    """Seconds before a phase in which its worker was idle.

    It may have waited for the first rows in that time, which does not belong to the phase.
    """
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
    """Number of workers that claim: the first of those that share a model."""
    paths = dock.data_paths.get(state, {})
    warehouses = max(len(dock.warehouses), 1)
    claimers = -(-sum(paths.values()) // warehouses)
    return min(claimers, workers) or workers


def _waits(dock: DockEvent, activities: Mapping[str, Activity]) -> dict[str, dict[str, float]]:
    waits_by_state = {}
    for state, activity in activities.items():
        waits = dock.states[state].waits if state in dock.states else {}
        claimers = _claimers(dock, state, len(activity.spans))
        waits_by_state[state] = {name: seconds / claimers for name, seconds in waits.items()}
    return {state: each for state, each in waits_by_state.items() if each}


def _busy(activity: Activity) -> float:
    return sum(span.seconds for span in activity.spans) / len(activity.spans) - activity.waited


def _generation(generate: Activity | None, rows: Rows | None) -> tuple[float, StageSpan | None]:
    """Return the seconds until half of the samples were done, and the span of the tail."""
    done = rows.states["generate"].done if rows and "generate" in rows.states else []
    if generate is None or rows is None or not done:
        return 0.0, None
    span = StageSpan(
        start=min(s.start for s in generate.spans), end=max(s.end for s in generate.spans)
    )
    times = [rows.start + seconds for seconds in rows.seconds]
    done = list(accumulate(done, max))  # a restarted controller counts from 0
    first, last = (_done_at(times, done, moment) for moment in (span.start, span.end))
    if last <= first:
        return 0.0, None
    half_seconds, most = (
        _when(times, done, first + share * (last - first)) for share in (0.5, 1 - TAIL_SHARE)
    )
    tail = StageSpan(start=min(max(most, span.start), span.end), end=span.end)
    return min(max(half_seconds - span.start, 0.0), span.seconds), tail


def _done_at(times: Sequence[float], done: Sequence[int], time: float) -> int:
    """Number of samples that were done at the first observation from this time on."""
    return done[min(bisect_left(times, time), len(done) - 1)]


def _when(times: Sequence[float], done: Sequence[int], count: float) -> float:
    """Return when this many samples were done, interpolated between two observations."""
    index = min(bisect_left(done, count), len(done) - 1)
    if index == 0 or done[index] == done[index - 1]:
        return times[index]
    share = (count - done[index - 1]) / (done[index] - done[index - 1])
    return times[index - 1] + share * (times[index] - times[index - 1])


def _parts(
    activities: Mapping[str, Activity],
    window: StageSpan,
    waits: Mapping[str, Mapping[str, float]],
    tail: StageSpan | None,
) -> dict[str, float]:
    """Return the blame by part. Waits for room in a full dock count as the dock's."""
    parts = dict.fromkeys(PARTS, 0.0)
    states = blame_by_state(_with_tail(activities, tail), window)
    for state, seconds in states.items():
        room = min(seconds, waits.get(state, {}).get(ROOM, 0.0))
        parts["dock"] += room
        parts[PART_OF.get(state, state)] += seconds - room
    parts["other"] = max(0.0, window.seconds - sum(states.values()))
    return parts


def _with_tail(
    activities: Mapping[str, Activity], tail: StageSpan | None
) -> Mapping[str, Activity]:
    """Split the generation at the start of its tail."""
    if tail is None:
        return activities
    spans = activities["generate"].spans
    before = tuple(StageSpan(start=s.start, end=min(s.end, tail.start)) for s in spans)
    after = tuple(StageSpan(start=max(s.start, tail.start), end=s.end) for s in spans)
    parts = {"generate": Activity(spans=before), "tail": Activity(spans=after)}
    return {**activities, **parts}


def _reshard_parts(reshard: ReshardEvent | None) -> dict[str, float]:
    """Return the fields of the event that are set."""
    parts = {name: getattr(reshard, name, None) for name in RESHARD_PARTS}
    return {name: value for name, value in parts.items() if value is not None}


def _medians(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = {name for each in figures for name in each}
    return {name: statistics.median(each.get(name, 0.0) for each in figures) for name in names}
