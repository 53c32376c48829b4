"""The state of a run, accumulated from its events. Shared by both displays and the report.

Pure, but for `RunHistory.read`. Later steps of a resumed run replace the earlier ones.
"""

import math
import pickle
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rljob_runtime.record.event_types import (
    AlarmEvent,
    BestEvent,
    CheckpointEvent,
    DockEvent,
    EvaluationEvent,
    Event,
    HangEvent,
    InFlightEvent,
    PhaseEvent,
    ProfileEvent,
    ProgressEvent,
    RecoveryEvent,
    ReplicasEvent,
    ReshardEvent,
    ResizeEvent,
    RewardErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
    SetFigures,
    StepEvent,
    StragglerEvent,
    WarningEvent,
)
from rljob_runtime.record.events import events_in, garbage_collection_paused, lines_until
from rljob_runtime.report.display.totals import (
    BusyTotals,
    DockTotals,
    RunTotals,
    StepTotals,
    number,
    row_name,
)

PHASES = (
    "generate",
    "reward-model",
    "reference",
    "teacher",
    "values",
    "compare",
    "reward",
    "update",
    "critic",
    "sync",
)
Z95 = 1.96
MOST_STEPS = 2000
"""Largest number of steps that are retained; the first few are always among them."""
FIRST_STEPS = 10
MOST_SNAPSHOTS = 100
"""Number of latest checkpoints among settled steps that a run can be rolled back to with correct sums."""
TAIL_BYTES = 16 * 2**20
"""Size of a log's end that is read with all details: two thousand steps of two devices, twenty of a
thousand."""
T = TypeVar("T")

NOT_BEGUN = RunStartedEvent(time=0.0, name="run", steps=0)
"""Placeholder for the first event while there is none."""


class StepSummary(NamedTuple):
    """The part of a step that is retained. time: its end, unix seconds. reward: mean; nan without one."""

    time: float
    seconds: float
    reward: float


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """The state of a run after its events so far.

    steps, evaluations, phases, docks: by step. reshards, in_flight: by the step whose weights the rollout
    received, 0 before the first. done: also contains the first step after the run's last start. settled: sums
    over the earlier steps, empty before `thin` drops any. snapshots: the sums at checkpoints.
    """

    started: RunStartedEvent = NOT_BEGUN
    finished: RunFinishedEvent | None = None
    progress: ProgressEvent | None = None
    first_time: float | None = None
    last_time: float = 0.0
    steps: dict[int, StepEvent] = field(default_factory=dict)
    evaluations: dict[int, EvaluationEvent] = field(default_factory=dict)
    phases: dict[int, list[PhaseEvent]] = field(default_factory=dict)
    docks: dict[int, DockEvent] = field(default_factory=dict)
    reshards: dict[int, ReshardEvent] = field(default_factory=dict)
    in_flight: dict[int, InFlightEvent] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointEvent] = field(default_factory=dict)
    profiles: list[ProfileEvent] = field(default_factory=list)
    resizes: list[ResizeEvent] = field(default_factory=list)
    recoveries: list[RecoveryEvent] = field(default_factory=list)
    replicas: list[ReplicasEvent] = field(default_factory=list)
    stragglers: list[StragglerEvent] = field(default_factory=list)
    warnings: list[WarningEvent | HangEvent] = field(default_factory=list)
    reward_errors: list[RewardErrorEvent] = field(default_factory=list)
    alarms: list[AlarmEvent] = field(default_factory=list)
    best: list[BestEvent] = field(default_factory=list)
    resumed_from: list[int] = field(default_factory=list)
    done: dict[int, StepSummary] = field(default_factory=dict)
    settled: RunTotals = field(default_factory=RunTotals)
    snapshots: dict[int, RunTotals] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> "RunHistory":
        """Build the history of these events."""
        history = cls()
        for event in events:
            history.add(event)
        return history

    @classmethod
    def read(cls, log: Path, *, tail_bytes: float = math.inf) -> "RunHistory":
        """Read the history of a log in bounded memory, thinning it on the way.

        Phases, docks and samples before the last `tail_bytes` are skipped. Raises OSError.
        """
        history = cls()
        with log.open("rb") as lines:
            start = max(0.0, log.stat().st_size - tail_bytes)
            early = events_in(lines_until(lines, int(start)), brief=True)
            history.take(chain(early, events_in(lines)))
        return history

    def take(self, events: Iterable[Event]) -> None:
        """Add many events and thin the history."""
        with garbage_collection_paused():
            for event in events:
                self.add(event)
                if isinstance(event, StepEvent):
                    self.thin()

    def add(self, event: Event) -> None:
        """Add one event. Unknown kinds change nothing."""
        self.first_time = event.time if self.first_time is None else self.first_time
        self.last_time = max(self.last_time, event.time)
        match event:
            case RunStartedEvent():
                self._start(event)
            case ProgressEvent():
                self.progress = event
            case PhaseEvent():
                self.phases.setdefault(event.step, []).append(event)
            case StepEvent():
                self.steps[event.step] = event
                reward = number(event.metrics.get("reward/mean"))
                self.done[event.step] = StepSummary(event.time, event.seconds, reward)
            case EvaluationEvent():
                self.evaluations[event.step] = event
            case DockEvent():
                self.docks[event.step] = event
            case ReshardEvent():
                self.reshards[event.step] = event
            case InFlightEvent():
                self.in_flight[event.step] = event
            case CheckpointEvent():
                self.checkpoints[event.step] = event
            case BestEvent():
                self.best.append(event)
            case ProfileEvent():
                self.profiles.append(event)
            case ResizeEvent():
                self.resizes.append(event)
            case WarningEvent() | HangEvent():
                self.warnings.append(event)
            case RewardErrorEvent():
                self.reward_errors.append(event)
            case AlarmEvent():
                if event.rolled_back_to is not None:
                    self._go_back(event.rolled_back_to)
                self.alarms.append(event)
            case RecoveryEvent():
                if event.rolled_back_to is not None:
                    self._go_back(event.rolled_back_to)
                self.recoveries.append(event)
            case ReplicasEvent():
                self.replicas.append(event)
            case StragglerEvent():
                self.stragglers.append(event)
            case RunFinishedEvent():
                self.finished = event

    def forget_details(self, *, before: int) -> None:
        """Drop samples, phases and reshard memory of earlier steps, and thin the history.

        A live display shows those of the last step only.
        """
        self.thin()
        for step in [s for s in self.phases if s < before]:
            del self.phases[step]
        for step, done in self.steps.items():
            if step < before and done.samples:
                self.steps[step] = replace(done, samples=[])
        for step, evaluation in self.evaluations.items():
            if step < before and evaluation.samples:
                self.evaluations[step] = replace(evaluation, samples=[])
        for step, reshard in self.reshards.items():
            if step < before and reshard.memory:
                self.reshards[step] = replace(reshard, memory=None)

    def thin(self) -> None:
        """Drop some of the earlier half of more than MOST_STEPS steps, so that the others are evenly spaced.

        Curves keep their shape, and a display of a long run stays small. Sums over the run remain, and so do
        reshards that exceeded their bound.
        """
        while len(self.steps) > MOST_STEPS:
            early = sorted(self.steps)[: MOST_STEPS // 2]
            self._settle(early[-1])
            first = self._first_step_of_attempt()
            stride = 2 ** math.ceil(math.log2(early[-1] / (MOST_STEPS // 4)))
            for step in (step for step in early[FIRST_STEPS:] if step % stride):
                del self.steps[step]
                if step != first:
                    del self.done[step]
                for events_by_step in (self.phases, self.docks, self.in_flight):
                    events_by_step.pop(step, None)
                if step in self.reshards and not is_over_bound(self.reshards[step]):
                    del self.reshards[step]

    def _settle(self, until: int) -> None:
        """Sum up the steps up to this one, and store the sums at checkpoints for a rollback."""
        settled, interval = self.settled, self.last_attempt_interval()
        for stop in sorted(
            {*(step for step in self.checkpoints if settled.step < step < until), until}
        ):
            settled.steps = self.step_totals(until=stop)
            settled.docks = self.dock_totals(until=stop)
            if interval is not None:
                settled.busy = self.busy_totals(since=interval[0], until=interval[1], last=stop)
            for worker in settled.busy.workers.values():
                worker.close_spans()
            settled.step = stop
            if stop in self.checkpoints:
                self.snapshots[stop] = _copy(settled)
        for step in sorted(self.snapshots)[:-MOST_SNAPSHOTS]:
            del self.snapshots[step]

    def _start(self, event: RunStartedEvent) -> None:
        if self.started is not NOT_BEGUN:
            resumed_from = event.resumed_from or 0
            self.resumed_from = [step for step in self.resumed_from if step < resumed_from]
            self.resumed_from.append(resumed_from)
            self._go_back(resumed_from)
            for totals in (self.settled, *self.snapshots.values()):
                totals.busy = BusyTotals()
        self.started, self.finished, self.progress = event, None, None

    def _go_back(self, to: int) -> None:
        """Drop the events of later steps; alarms that rolled the run back remain."""
        by_steps: tuple[dict[int, Any], ...] = (
            self.steps, self.done, self.evaluations, self.phases, self.docks, self.reshards,
            self.in_flight, self.checkpoints, self.snapshots,
        )  # fmt: skip
        for by_step in by_steps:
            for step in [s for s in by_step if s > to]:
                del by_step[step]
        if self.settled.step > to:
            self.settled = _copy(self.snapshots.get(max(self.snapshots, default=-1), RunTotals()))
        if self.finished and (self.finished.step or 0) > to:
            self.finished = None
        self.warnings = [e for e in self.warnings if (e.step or 0) <= to]
        self.reward_errors = [e for e in self.reward_errors if e.step <= to]
        self.resizes = [e for e in self.resizes if e.step <= to]
        self.stragglers = [e for e in self.stragglers if e.step <= to]
        self.profiles = [e for e in self.profiles if e.step <= to]
        self.best = [e for e in self.best if e.step <= to]
        self.alarms = [e for e in self.alarms if e.step <= to or e.rolled_back_to is not None]

    def active_alarms(self) -> list[AlarmEvent]:
        """Return the alarms that were raised and not cleared, the last one of each name."""
        last = {event.alarm: event for event in self.alarms}
        return [event for event in last.values() if event.state == "raised"]

    def slow_devices(self) -> list[StragglerEvent]:
        """Return the last events of devices that are slow now. Each driver process starts without any."""
        last = {
            (event.state, *event.devices): event
            for event in self.stragglers
            if event.time >= self.started.time
        }
        return [event for event in last.values() if event.status == "slow"]

    def left_out(self) -> ReplicasEvent | None:
        """Return the last event about devices that training continues without, while it does."""
        last = self.replicas[-1] if self.replicas else None
        return last if last is not None and last.left_out else None

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.started.name

    @property
    def devices(self) -> int | None:
        """Current number of devices: those at the start and the changes by resizes."""
        first = self.started.devices
        since = [e for e in self.resizes if e.time >= self.started.time]
        return None if first is None else first + sum(e.to - e.from_ for e in since)

    @property
    def total_steps(self) -> int:
        """Number of steps that the job requests; those done, while that is unknown."""
        return max(self.started.steps, self.step)

    @property
    def step(self) -> int:
        """Number of the last finished step."""
        return max(self.done, default=0)

    @property
    def began(self) -> float | None:
        """Start of the run's last process, unix seconds."""
        return self.first_time if self.started is NOT_BEGUN else self.started.time

    @property
    def run_seconds(self) -> float:
        """Duration of the run's last process so far."""
        seconds = self.finished.seconds if self.finished else None
        return self.last_time - (self.began or self.last_time) if seconds is None else seconds

    @property
    def hints(self) -> list[str]:
        """Suggested commands of a run that has ended."""
        return (self.finished.next if self.finished else None) or []

    def last_step(self) -> StepEvent | None:
        """Return the event of the last step that was not thinned out."""
        return self.steps.get(max(self.steps, default=0))

    @property
    def last_metrics(self) -> Mapping[str, float | None]:
        """Metrics of the last step that was not thinned out."""
        last = self.last_step()
        return last.metrics if last else {}

    def switched_to(self) -> InFlightEvent | None:
        """Return the last in-flight weights, if devices switched to them during the last step."""
        latest = self.in_flight.get(max(self.in_flight, default=0))
        before = self.steps.get(self.step - 1, self.started)
        return latest if latest and latest.time > before.time else None

    def series(self, metric: str) -> list[float]:
        """Return a metric over the steps that have it; nan where it was not finite."""
        events = (self.steps[step] for step in sorted(self.steps))
        return [number(e.metrics[metric]) for e in events if metric in e.metrics]

    def eta_seconds(self) -> float | None:
        """Estimate the seconds to the last step, from the median of the last 20 steps."""
        recent = [self.steps[step].seconds for step in sorted(self.steps)[-20:]]
        if not recent:
            return None
        return statistics.median(recent) * (self.total_steps - self.step)

    def phase_seconds(self, step: int) -> dict[str, float]:
        """Return the seconds of each phase: the step's own figures, else those of the busiest row."""
        if step in self.steps and self.steps[step].phases:
            return {
                name: seconds for name, seconds in self.steps[step].phases.items() if seconds > 0
            }
        rows: dict[str, dict[str, float]] = {}
        for phase in self.phases.get(step, []):
            if not phase.evaluation:
                sums = rows.setdefault(phase.name, {})
                row = row_name(phase)
                sums[row] = sums.get(row, 0.0) + phase.end - phase.start
        order = {name: i for i, name in enumerate(PHASES)}
        names = sorted(rows, key=lambda name: order.get(name, len(order)))
        return {name: max(rows[name].values()) for name in names}

    def last_attempt_interval(self) -> tuple[float, float] | None:
        """Return the start of the first step after the run's last start, and the end of its last step.

        Unix seconds; None before the first of these steps.
        """
        steps = [step for step in self.done.values() if step.time > self.started.time]
        if not steps:
            return None
        return min(step.time - step.seconds for step in steps), max(step.time for step in steps)

    def _first_step_of_attempt(self) -> int | None:
        """Return the first step after the run's last start."""
        begun = self.started.time
        return min((s for s, done in self.done.items() if done.time > begun), default=None)

    def seconds(self, step: int) -> float | None:
        """Return the duration of a step; None while it is not done."""
        return self.done[step].seconds if step in self.done else None

    def step_totals(self, *, until: float = math.inf) -> StepTotals:
        """Return the sums over all steps up to `until`."""
        totals = _copy(self.settled.steps)
        for step in self._unsettled(self.steps, until):
            totals.add(self.steps[step])
        return totals

    def dock_totals(self, *, until: float = math.inf) -> DockTotals:
        """Return the sums over the dock events up to `until`."""
        totals = _copy(self.settled.docks)
        for step in self._unsettled(self.docks, until):
            totals.add(self.docks[step], seconds=self.seconds(step) or 0.0)
        return totals

    def busy_totals(self, *, since: float, until: float, last: float = math.inf) -> BusyTotals:
        """Return the workers' sums between two times (unix seconds) and up to step `last`.

        Once steps are settled, since must be that of `last_attempt_interval`.
        """
        totals = _copy(self.settled.busy)
        steps = self._unsettled(self.phases, last)
        totals.add((p for step in steps for p in self.phases[step]), since=since, until=until)
        return totals

    def mean_speed(self) -> float | None:
        """Return the mean tokens per second over the steps that have it."""
        totals = self.step_totals()
        return totals.speeds / totals.num_speeds if totals.num_speeds else None

    def _unsettled(self, by_step: Iterable[int], until: float) -> Iterator[int]:
        yield from sorted(step for step in by_step if self.settled.step < step <= until)

    def reward_change(self) -> tuple[float, float, int] | None:
        """Return the mean reward of the first and the last k steps, and k."""
        rewards = [self.done[step].reward for step in sorted(self.done)]
        rewards = [reward for reward in rewards if not math.isnan(reward)]
        if len(rewards) < 2:
            return None
        k = max(1, min(10, len(rewards) // 4))
        return statistics.fmean(rewards[:k]), statistics.fmean(rewards[-k:]), k

    def accuracy_change(self) -> tuple[EvaluationEvent, EvaluationEvent] | None:
        """Return the first and the last evaluation, if there are two."""
        steps = sorted(self.evaluations)
        if len(steps) < 2:
            return None
        return self.evaluations[steps[0]], self.evaluations[steps[-1]]

    def errors(self) -> int:
        """Return the number of samples with a failed score."""
        return sum(event.count for event in self.reward_errors)


def _copy(totals: T) -> T:
    """Copy deeply by pickle, which is ten times faster than `copy`."""
    copied: T = pickle.loads(pickle.dumps(totals))  # noqa: S301
    return copied


def is_over_bound(reshard: ReshardEvent) -> bool:
    """Return whether the reshard exceeded its memory bound."""
    return reshard.peak_bytes > reshard.bound_bytes


def interval95(evaluation: SetFigures) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy: normal, or Wilson's where the error is 0 or unknown."""
    accuracy, n = evaluation.accuracy, max(evaluation.n, 1)
    stderr = evaluation.stderr or 0.0
    if stderr > 0:
        return max(0.0, accuracy - Z95 * stderr), min(1.0, accuracy + Z95 * stderr)
    scale = 1 + Z95**2 / n
    centre = (accuracy + Z95**2 / (2 * n)) / scale
    margin = Z95 * math.sqrt(accuracy * (1 - accuracy) / n + Z95**2 / (4 * n * n)) / scale
    return max(0.0, centre - margin), min(1.0, centre + margin)


def gain95(before: SetFigures, after: SetFigures) -> tuple[float, float, float]:
    """Return the difference of two accuracies with its 95 % interval, taken as independent samples."""
    low_before, high_before = interval95(before)
    low_after, high_after = interval95(after)
    gain = after.accuracy - before.accuracy
    margin = math.hypot(high_before - low_before, high_after - low_after) / 2
    return gain, gain - margin, gain + margin
