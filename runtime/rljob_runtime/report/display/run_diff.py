"""Compares two runs: the differences of their jobs, metrics and held-out accuracies.

Called by `rljob diff`. Reads only the runs' folders.
"""

import math
import statistics
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.problems import InvalidJob
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import (
    AlarmEvent,
    EvaluationEvent,
    Event,
    InFlightEvent,
    PhaseEvent,
    RunStartedEvent,
    StepEvent,
)
from rljob_runtime.record.events import events_in
from rljob_runtime.report.display.history import RunHistory, gain95
from rljob_runtime.report.display.paired import PairedMean, over_pairs, over_prompts
from rljob_runtime.report.display.totals import number
from rljob_runtime.report.display.wording import figure, percent, seconds_of

ABSENT = "–"
IN_FLIGHT = {
    "weights in flight": "received_seconds",
    "weights in flight, behind generation": "hidden_seconds",
    "weights in flight, generation stands still": "switch_seconds",
}
"""Fields of the `in_flight` events of the same steps' weights, by the row of the phases."""
LAST_STEPS = 10
"""Number of common last steps that a mean is taken over, at most a quarter of them."""


class MetricRow(Mapping[str, float]):
    """Numbers by name in eight bytes each, since all steps are compared, however many there are."""

    __slots__ = ("_indices", "_values")

    def __init__(self, metrics: Mapping[str, float | None]) -> None:
        self._indices = _indices(*metrics)
        self._values = array("d", map(number, metrics.values()))

    def __getitem__(self, name: str) -> float:
        return self._values[self._indices[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def is_same(self, other: "MetricRow") -> bool:
        """Return whether both rows are equal in every bit."""
        same = self._values.tobytes() == other._values.tobytes()
        return same and self._indices is other._indices


@cache
def _indices(*names: str) -> dict[str, int]:
    return {name: index for index, name in enumerate(names)}


@dataclass(slots=True)
class ComparedRun:
    """A run that was read from its folder.

    spec: fields of its job as `path → value`. By step: metrics; seconds of the phases and of the `step`;
    in_flight, seconds by the row of the phases; prompts, digests of the prompts if known; rewards of each
    prompt. held_out: accuracy of each held-out prompt, by the evaluation's step.
    """

    name: str
    log: Path
    spec: Mapping[str, Any]
    history: RunHistory = field(default_factory=RunHistory)
    metrics: dict[int, MetricRow] = field(default_factory=dict)
    seconds: dict[int, MetricRow] = field(default_factory=dict)
    in_flight: dict[int, MetricRow] = field(default_factory=dict)
    prompts: dict[int, str] = field(default_factory=dict)
    rewards: dict[int, Sequence[float]] = field(default_factory=dict)
    held_out: dict[int, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> "ComparedRun":
        """Read a run. Raises ConfigError for a folder without an event log."""
        events, job = folder / "events.jsonl", folder / "rljob.yaml"
        if not events.is_file():
            raise ConfigError(f"{folder} holds no events.jsonl; name the folder of a run")
        try:
            spec = parse_yaml(job.read_text(), name=str(job)) if job.is_file() else {}
        except (InvalidJob, ValueError) as error:
            raise ConfigError(f"{job} is no YAML: {error}; mend it, or move it away") from None
        run = cls(str(folder), events, dict(_fields(spec or {})))
        with events.open("rb") as lines:
            run.history.take(run._record(events_in(lines, brief=True)))
        return run

    def step_seconds(self, steps: Sequence[int]) -> dict[int, Mapping[str, float]]:
        """Return the seconds of these steps and of their phases.

        Runs of earlier releases have phases only as separate events.
        """
        lacking = {step for step in steps if len(self.seconds[step]) == 1}
        history = RunHistory()
        with self.log.open("rb") as lines:
            history.take(
                event
                for event in (events_in(lines) if lacking else ())
                if isinstance(event, RunStartedEvent | AlarmEvent)
                or (isinstance(event, PhaseEvent) and event.step in lacking)
            )
        return {
            step: {**self._nonzero_seconds(step), **history.phase_seconds(step)} for step in steps
        }

    def _nonzero_seconds(self, step: int) -> dict[str, float]:
        return {name: x for name, x in self.seconds[step].items() if name == "step" or x > 0}

    def _record(self, events: Iterable[Event]) -> Iterator[Event]:
        """Store the values of the events and yield the events."""
        for event in events:
            if isinstance(event, StepEvent):
                self.metrics[event.step] = MetricRow(event.metrics)
                self.seconds[event.step] = MetricRow({"step": event.seconds} | event.phases)
                if event.digest and event.prompt_rewards:
                    self.prompts[event.step] = event.digest.prompts
                    self.rewards[event.step] = _values(event.prompt_rewards)
                    event = replace(event, prompt_rewards=None)
            elif isinstance(event, EvaluationEvent) and event.prompt_accuracies:
                self.held_out[event.step] = _values(event.prompt_accuracies)
                event = replace(event, prompt_accuracies=None)
            elif isinstance(event, InFlightEvent):
                seconds = {name: getattr(event, key) for name, key in IN_FLIGHT.items()}
                self.in_flight[event.step] = MetricRow(seconds)
            yield event
            if isinstance(event, RunStartedEvent | AlarmEvent):
                self._forget(after=self.history.step)

    def _forget(self, *, after: int) -> None:
        for by_step in (
            self.metrics, self.seconds, self.in_flight, self.prompts, self.rewards, self.held_out,
        ):  # fmt: skip
            for step in [step for step in by_step if step > after]:
                del by_step[step]


@dataclass(frozen=True, slots=True)
class MetricDiff:
    """A metric of both runs, over the steps that both have done.

    a, b: means over the last steps. first_different_step: None if all values are equal.
    """

    name: str
    a: float
    b: float
    first_different_step: int | None


@dataclass(frozen=True, slots=True)
class AccuracyDiff:
    """Held-out accuracies (0–1) at a common step, and their difference with its 95 % interval.

    paired: over the same prompts; otherwise the accuracies are taken as independent samples.
    """

    step: int
    a: float
    b: float
    gain: float
    low: float
    high: float
    paired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDiff:
    """The effect of a change on a figure, over the same prompts.

    steps: the compared steps; each: the effect at each of them. all: over all of these steps, where a prompt
    of a step counts once.
    """

    figure: str
    steps: list[int]
    each: list[PairedMean]
    all: PairedMean


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """The differences between two runs.

    spec: path → values of both, None where a job does not set it. steps: number of common steps; averaged:
    number of them that means are taken over. phases: name → mean seconds.
    """

    a: ComparedRun
    b: ComparedRun
    spec: dict[str, tuple[Any, Any]]
    steps: int
    averaged: int
    metrics: list[MetricDiff]
    phases: dict[str, tuple[float, float]]
    accuracies: list[AccuracyDiff]
    paired: list[PairedDiff] = field(default_factory=list)


def diff_runs(
    a: ComparedRun, b: ComparedRun, others: Sequence[tuple[ComparedRun, ComparedRun]] = ()
) -> RunDiff:
    """Compare run b with run a.

    others: more pairs with the same difference and other seeds, which are included in the paired differences.
    """
    common_steps = sorted(a.metrics.keys() & b.metrics.keys())
    averaged = (
        common_steps[len(common_steps) - max(1, min(LAST_STEPS, len(common_steps) // 4)) :]
        if common_steps
        else []
    )
    return RunDiff(
        a=a,
        b=b,
        spec=_spec_diff(a.spec, b.spec),
        steps=len(common_steps),
        averaged=len(averaged),
        metrics=list(_metrics(a.metrics, b.metrics, common_steps, averaged)),
        phases=_phases(a, b, averaged),
        accuracies=list(_accuracies(a, b)),
        paired=list(_paired([(a, b), *others])),
    )


def diff_json(diff: RunDiff) -> dict[str, Any]:
    """Build the object for `--json`; a number that is not finite is None."""
    return {
        "a": diff.a.name,
        "b": diff.b.name,
        "spec": {path: {"a": x, "b": y} for path, (x, y) in diff.spec.items()},
        "steps": diff.steps,
        "averagedSteps": diff.averaged,
        "metrics": {
            m.name: {
                "a": _finite(m.a),
                "b": _finite(m.b),
                "firstDifferentStep": m.first_different_step,
            }
            for m in diff.metrics
        },
        "phaseSeconds": {
            n: {"a": _finite(x), "b": _finite(y)} for n, (x, y) in diff.phases.items()
        },
        "evaluations": [
            {
                "step": e.step,
                "a": e.a,
                "b": e.b,
                "gain": e.gain,
                "interval95": [e.low, e.high],
                "paired": e.paired,
            }
            for e in diff.accuracies
        ],
        "paired": [
            {
                "figure": p.figure,
                **_paired_json(p.all),
                "steps": [
                    {"step": s, **_paired_json(x)} for s, x in zip(p.steps, p.each, strict=True)
                ],
            }
            for p in diff.paired
        ],
    }


def diff_tables(diff: RunDiff) -> Iterator[RenderableType]:
    """Yield the tables for a terminal."""
    heads = ("A", "B")
    yield Text(f"A: {diff.a.name} ({diff.a.history.step} steps)")
    yield Text(f"B: {diff.b.name} ({diff.b.history.step} steps)")
    jobs = [(path, _text(x), _text(y)) for path, (x, y) in diff.spec.items()]
    yield _table("job", ("field", *heads), jobs, "both jobs say the same")
    steps = f"mean of the last {diff.averaged} of {diff.steps} steps that both have done"
    metrics = [
        (m.name, figure(m.a), figure(m.b), _change(m.a, m.b), _first_different_text(m))
        for m in diff.metrics
    ]
    columns = ("metric", *heads, "B − A", "first differ")
    yield _table(f"metrics: {steps}", columns, metrics, "no metric in common")
    times = [
        (name, seconds_of(x), seconds_of(y), _ratio(x, y)) for name, (x, y) in diff.phases.items()
    ]
    yield _table(f"seconds a step: {steps}", ("phase", *heads, "B ÷ A"), times, "no step in common")
    paired = [row for each in diff.paired for row in _paired_rows(each)]
    paired_columns = ("figure", "B − A", "95 % interval", "over")
    yield _table(
        "the same prompts", paired_columns, paired, "no step with the same prompts after they part"
    )
    columns = ("evaluation", *heads, "B − A", "95 % interval")
    accuracies = [_accuracy_row(each) for each in diff.accuracies]
    yield _table("held-out accuracy", columns, accuracies, "no evaluation of the same step in both")


def _fields(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a job; objects in a list by their index."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _fields(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(inner, Mapping) for inner in value):
        for index, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{index}]")
    else:
        yield path, value


def _spec_diff(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    paths = [*a, *(path for path in b if path not in a)]
    pairs = {path: (a.get(path), b.get(path)) for path in paths}
    return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


def _metrics(
    a: Mapping[int, MetricRow],
    b: Mapping[int, MetricRow],
    common_steps: list[int],
    averaged: list[int],
) -> Iterator[MetricDiff]:
    of_a, of_b = ({name for step in common_steps for name in rows[step]} for rows in (a, b))
    differ = [step for step in common_steps if not a[step].is_same(b[step])]
    for name in sorted(of_a & of_b):
        pairs = ((s, a[s].get(name, math.nan), b[s].get(name, math.nan)) for s in differ)
        first_different_step = next((step for step, x, y in pairs if not _same(x, y)), None)
        means = [_mean(rows[s].get(name, math.nan) for s in averaged) for rows in (a, b)]
        yield MetricDiff(name, means[0], means[1], first_different_step)


def _phases(a: ComparedRun, b: ComparedRun, averaged: list[int]) -> dict[str, tuple[float, float]]:
    seconds_of_runs: dict[str, list[list[float]]] = {"step": [[], []]}
    for side, run in enumerate((a, b)):
        for step, seconds in run.step_seconds(averaged).items():
            for name, value in [*seconds.items(), *run.in_flight.get(step, {}).items()]:
                seconds_of_runs.setdefault(name, [[], []])[side].append(value)
    return {name: (_mean(x), _mean(y)) for name, (x, y) in seconds_of_runs.items() if x or y}


def _accuracies(a: ComparedRun, b: ComparedRun) -> Iterator[AccuracyDiff]:
    same = _same_held_out(a, b)
    for step in sorted(a.history.evaluations.keys() & b.history.evaluations.keys()):
        of_a, of_b = a.history.evaluations[step], b.history.evaluations[step]
        paired_mean = (
            over_prompts(a.held_out.get(step, ()), b.held_out.get(step, ())) if same else None
        )
        gain = gain95(of_a, of_b)
        if paired_mean is not None and paired_mean.n > 1:
            gain = paired_mean.gain, paired_mean.low, paired_mean.high
        paired = paired_mean is not None and paired_mean.n > 1
        yield AccuracyDiff(step, of_a.accuracy, of_b.accuracy, *gain, paired=paired)


def _same_held_out(a: ComparedRun, b: ComparedRun) -> bool:
    """Return whether both were evaluated on the same prompts."""
    decides = ("spec.data", "spec.evaluation.prompts", "spec.seed", "spec.batch.maxPromptLength")
    paths = {path for run in (a, b) for path in run.spec if path.startswith(decides)}
    return bool(paths) and all(a.spec.get(path) == b.spec.get(path) for path in paths)


def _paired(pairs: Sequence[tuple[ComparedRun, ComparedRun]]) -> Iterator[PairedDiff]:
    """Compare the rewards of steps, and held-out accuracies, after the pairs' runs diverged."""
    steps: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
    held_out: dict[int, list[tuple[Sequence[float], Sequence[float]]]] = {}
    for a, b in pairs:
        for step in sorted(a.rewards.keys() & b.rewards.keys()):
            if a.prompts[step] == b.prompts[step]:
                steps.setdefault(step, []).append((a.rewards[step], b.rewards[step]))
        if _same_held_out(a, b):
            for step in sorted(a.held_out.keys() & b.held_out.keys()):
                held_out.setdefault(step, []).append((a.held_out[step], b.held_out[step]))
    for name, by_step in (("reward", steps), ("held-out accuracy", held_out)):
        first_different_step = next(
            (s for s in sorted(by_step) if any(x != y for x, y in by_step[s])), None
        )
        later = {
            s: v
            for s, v in sorted(by_step.items())
            if first_different_step is not None and s >= first_different_step
        }
        complete = {s: v for s, v in later.items() if len(v) == len(pairs)}
        each = {s: mean for s, values in complete.items() if (mean := _gain(values)) is not None}
        if each:
            joined = [
                tuple([x for s in each for x in complete[s][pair][side]] for side in (0, 1))
                for pair in range(len(pairs))
            ]
            overall = _gain([(a, b) for a, b in joined])
            assert overall is not None, "steps can be compared one by one"
            yield PairedDiff(figure=name, steps=[*each], each=[*each.values()], all=overall)


def _gain(values: Sequence[tuple[Sequence[float], Sequence[float]]]) -> PairedMean | None:
    """Return the difference of one pair over its prompts, or of several over the pairs."""
    means = [over_prompts(a, b) for a, b in values]
    if len(means) == 1:
        return means[0]
    gains = [mean.gain for mean in means if mean is not None]
    return over_pairs(gains) if len(gains) == len(means) else None


def _values(values_or_none: Sequence[float | None]) -> Sequence[float]:
    return array("d", (math.nan if value is None else value for value in values_or_none))


def _paired_json(paired_mean: PairedMean) -> dict[str, Any]:
    interval = [_finite(paired_mean.low), _finite(paired_mean.high)]
    return {
        "gain": paired_mean.gain,
        "interval95": interval,
        "n": paired_mean.n,
        "of": paired_mean.of,
    }


def _paired_rows(diff: PairedDiff) -> Iterator[tuple[str, ...]]:
    """Yield a row for all steps, and one for each of the last ones."""
    if len(diff.steps) > 1:
        steps = f"steps {diff.steps[0]} to {diff.steps[-1]}"
        yield _paired_row(f"{diff.figure}, {steps}", diff.all)
    for step, each in [*zip(diff.steps, diff.each, strict=True)][-LAST_STEPS:]:
        yield _paired_row(f"{diff.figure}, step {step}", each)


def _paired_row(figure: str, paired_mean: PairedMean) -> tuple[str, ...]:
    interval = f"{paired_mean.low:+.4f} to {paired_mean.high:+.4f}" if paired_mean.n > 1 else ABSENT
    return figure, f"{paired_mean.gain:+.4f}", interval, f"{paired_mean.n} {paired_mean.of}"


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _text(value: object) -> str:
    return ABSENT if value is None else str(value)


def _accuracy_row(diff: AccuracyDiff) -> tuple[str, ...]:
    interval = f"{100 * diff.low:+.1f} to {100 * diff.high:+.1f}"
    gain = f"{100 * diff.gain:+.1f} points"
    return f"step {diff.step}", percent(diff.a), percent(diff.b), gain, interval


def _first_different_text(metric: MetricDiff) -> str:
    return "never" if metric.first_different_step is None else f"step {metric.first_different_step}"


def _change(a: float, b: float) -> str:
    change = b - a
    return ABSENT if math.isnan(change) else ("+" if change > 0 else "") + figure(change)


def _ratio(a: float, b: float) -> str:
    return f"{b / a:.2f}" if a > 0 and math.isfinite(b) else ABSENT


def _table(
    title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], nothing: str
) -> RenderableType:
    if not rows:
        return Text(f"\n{title}: {nothing}")
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
