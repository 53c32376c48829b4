"""Results of a job's simulated runs: means over seeds, with a confidence interval. The CLI calls this.

`RunSummary` subscribes to a run's events, and would also work for a real run's.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rljob_runtime.record.event_types import (
    CheckpointEvent,
    DockEvent,
    EvaluationEvent,
    Event,
    PhaseEvent,
    RunFinishedEvent,
    RunStartedEvent,
    StepEvent,
)

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's distribution, by degrees of freedom from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over runs. low, high: its 95 % interval; both equal the mean for a single run."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Return Student's interval of the mean."""
        count, mean = len(values), sum(values) / len(values)
        if count == 1:
            return cls(mean=mean, low=mean, high=mean)
        variance = sum((value - mean) ** 2 for value in values) / (count - 1)
        quantile = T_975[count - 2] if count - 2 < len(T_975) else 1.96
        half_width = quantile * math.sqrt(variance / count)
        return cls(mean=mean, low=mean - half_width, high=mean + half_width)


@dataclass(slots=True, kw_only=True)
class RunSummary:
    """Sums over one run's events.

    busy: seconds of devices by stage; waited: seconds in which a stage had begun and waited for rows; other:
    seconds of work that all devices wait for. dock_bytes: by writer and reader.
    """

    devices: int = 0
    steps: list[StepEvent] = field(default_factory=list)
    busy: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    waited: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    other: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    dock_bytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: float = 0.0

    def on_event(self, event: Event) -> None:
        """Add an event to the sums."""
        if isinstance(event, RunStartedEvent):
            self.devices = event.devices or 0
        elif isinstance(event, PhaseEvent):
            if event.role != "reward":
                self.busy[event.name] += event.end - event.start - event.waited_seconds
                self.waited[event.name] += event.waited_seconds
        elif isinstance(event, StepEvent):
            self.steps.append(event)
        elif isinstance(event, DockEvent):
            for edge in event.edges:
                self.dock_bytes[f"{edge.from_} → {edge.to}"] += edge.bytes
        elif isinstance(event, CheckpointEvent):
            self.other["checkpoint"] += event.seconds or 0.0
        elif isinstance(event, EvaluationEvent):
            self.other["evaluation"] += event.seconds or 0.0
        elif isinstance(event, RunFinishedEvent):
            self.seconds = event.seconds or 0.0

    @property
    def settled(self) -> list[StepEvent]:
        """Return representative steps: all but the first, in which nothing overlaps yet."""
        return self.steps[1:] or self.steps

    def mean(self, of: Callable[[StepEvent], float]) -> float:
        """Return the mean of a value over settled steps."""
        return sum(map(of, self.settled)) / max(1, len(self.settled))

    def metric(self, name: str) -> float:
        """Return the mean of a metric over settled steps."""
        return self.mean(lambda step: step.metrics.get(name) or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The results of one job.

    tokens_per_second: of a device, by Eq. 5. seconds: of a step. stages: of the slowest worker, in a step.
    busy, idle: shares of all devices' time, by stage and by cause. staleness: versions. eta_seconds: of all
    steps, evaluations and checkpoints. cost: of the full run, in the currency of the device-hour's price.
    """

    job: str
    devices: int
    steps: int
    seeds: int
    tokens_per_second: Estimate
    response_tokens_per_second: Estimate
    seconds: Estimate
    eta_seconds: Estimate
    stages: dict[str, float]
    busy: dict[str, float]
    idle: dict[str, float]
    staleness: float
    dock_bytes: dict[str, float]
    cost: Estimate | None = None

    def json(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        return asdict(self)


def answers_of(
    job: str, runs: Sequence[RunSummary], *, total_steps: int, price: float | None = None
) -> Answers:
    """Summarize a job's runs.

    total_steps: of the job, which its simulation may have cut short. price: of a device-hour.
    """
    devices, steps = runs[0].devices, len(runs[0].steps)
    etas = [eta(run, total_steps) for run in runs]
    busy, idle = _shares(runs)
    costs = [seconds / 3600 * devices * price for seconds in etas] if price is not None else None
    return Answers(
        job=job,
        devices=devices,
        steps=steps,
        seeds=len(runs),
        tokens_per_second=Estimate.of([run.metric("tps_eq5") for run in runs]),
        response_tokens_per_second=Estimate.of(
            [run.metric("response_tokens_per_second") for run in runs]
        ),
        seconds=Estimate.of([run.mean(lambda step: step.seconds) for run in runs]),
        eta_seconds=Estimate.of(etas),
        stages=_stages(runs),
        busy=busy,
        idle=idle,
        staleness=_staleness(runs),
        dock_bytes={
            edge: sum(run.dock_bytes[edge] / max(1, len(run.steps)) for run in runs) / len(runs)
            for edge in runs[0].dock_bytes
        },
        cost=Estimate.of(costs) if costs else None,
    )


def eta(run: RunSummary, total_steps: int) -> float:
    """Return the seconds of all steps of a job, from a run that may have fewer."""
    return run.seconds * total_steps / max(1, len(run.steps))


def _stages(runs: Sequence[RunSummary]) -> dict[str, float]:
    means: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for name in dict.fromkeys(name for step in run.settled for name in step.phases):
            values = [step.phases.get(name, 0.0) for step in run.settled]
            means[name].append(sum(values) / len(values))
    return {name: sum(values) / len(runs) for name, values in means.items()}


def _shares(runs: Sequence[RunSummary]) -> tuple[dict[str, float], dict[str, float]]:
    """Return shares of all devices' time: busy by stage, and idle by cause."""
    total = sum(run.seconds * run.devices for run in runs)
    busy: dict[str, float] = defaultdict(float)
    idle: dict[str, float] = defaultdict(float)
    for run in runs:
        for name, seconds in run.busy.items():
            busy[name] += seconds / total
        for name, seconds in run.waited.items():
            if seconds:
                idle[f"{name} waits for rows"] += seconds / total
    idle["nothing to do"] = max(0.0, 1 - sum(busy.values()) - sum(idle.values()))
    return dict(busy), dict(idle)


def _staleness(runs: Sequence[RunSummary]) -> float:
    ages: Counter[int] = sum(
        (Counter(step.staleness) for run in runs for step in run.steps), Counter()
    )
    return sum(age * rows for age, rows in ages.items()) / max(1, ages.total())
