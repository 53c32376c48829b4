"""Fit device rates to a recorded run, and evaluate how well they predict it. The CLI calls this.

The run's job is simulated with the planner's arithmetic; each stage's factor is the ratio of measured to
simulated seconds. The arithmetic keeps its form, so that these factors apply to other layouts, lengths and
batches on the same devices. Rates are fitted to the first half of the steps and evaluated on the second.
"""

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.check.load import load_job
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import DockEvent, Event, PhaseEvent, StepEvent
from rljob_runtime.record.events import cut_rewound, read_events
from rljob_runtime.record.remote import EVENTS_NAME
from rljob_runtime.simulate.costs import Costs, PassCosts, planned
from rljob_runtime.simulate.draws import Lengths, ObservedLengths
from rljob_runtime.simulate.run import simulate, with_steps

LEFT_OUT = 1
"""Initial steps to ignore, in which engines and processes start."""
FEWEST = 4
"""Minimum number of steps after them."""
SIMULATED_STEPS = 6
MEETING = ("update", "critic")
"""Stages whose workers end together: the fastest worker has not waited for others."""
ALIKE = 0.5
"""Assumed share of variance common to a prompt's samples, if a run has no data."""
ROUNDS = 3
"""Number of corrections: some costs of a stage, such as moving rows, do not scale with its factor."""
QUANTILES = 200
"""Number of lengths that represent those of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Durations and lengths of a run, as medians over steps.

    step: seconds. stages: of a worker at each, without waits for rows. lengths: of responses, those of all
    steps; common_share, prompt: as in `ObservedLengths`. dock_bytes: moved from the warehouses per second; 0
    if nothing was timed.
    """

    step: float
    stages: Mapping[str, float]
    lengths: Sequence[int]
    common_share: float
    prompt: int | None
    dock_bytes: float

    def shares(self) -> dict[str, float]:
        """Return the share of the step by stage."""
        return {name: seconds / self.step for name, seconds in self.stages.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Factors fitted to a run.

    factors: by stage, ratio of measured to arithmetic seconds. fixed_seconds: of a step, outside its stages.
    dock_bytes: as in `Times`, of all warehouses.
    """

    factors: Mapping[str, float]
    fixed_seconds: float
    dock_bytes: float
    lengths: Lengths

    def costs(self, costs: Costs) -> Costs:
        """Return the costs of the arithmetic, corrected by the factors."""
        slower = self.factors.get
        decoding, times = costs.decoding, slower("generate", 1.0)
        update, rewards = slower("update", 1.0), costs.rewards
        return replace(
            costs,
            decoding=replace(
                decoding,
                prompt_seconds=times * decoding.prompt_seconds,
                pass_seconds=times * decoding.pass_seconds,
                weights_seconds=times * decoding.weights_seconds,
                product_seconds=times * decoding.product_seconds,
                sequence_seconds=times * decoding.sequence_seconds,
                context_seconds=times * decoding.context_seconds,
            ),
            states={
                name: _slower(passes, slower(name, 1.0)) for name, passes in costs.states.items()
            },
            optimizer_seconds=update * costs.optimizer_seconds,
            reshard_seconds=slower("sync", 1.0) * costs.reshard_seconds,
            dispatch_bytes=self.dock_bytes or costs.dispatch_bytes,
            fixed_seconds=costs.fixed_seconds + self.fixed_seconds,
            rewards=replace(rewards, mean_seconds=slower("reward", 1.0) * rewards.mean_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A fit and its evaluation.

    steps: first and last that rates were fitted to, step_seconds: their duration. judged: first and last that
    `predicted` is compared with.
    """

    name: str
    steps: tuple[int, int]
    step_seconds: float
    judged: tuple[int, int]
    measured: Measured
    observed: Times
    predicted: Times

    def json(self) -> dict[str, Any]:
        """Return the fit as JSON values."""
        return {
            "job": self.name,
            "fitted_steps": list(self.steps),
            "fitted_step_seconds": self.step_seconds,
            "judged_steps": list(self.judged),
            "factors": dict(self.measured.factors),
            "fixed_seconds": self.measured.fixed_seconds,
            "dock_bytes_per_second": self.measured.dock_bytes,
            "measured": {"step_seconds": self.observed.step, "shares": self.observed.shares()},
            "predicted": {"step_seconds": self.predicted.step, "shares": self.predicted.shares()},
        }


def fit_run(folder: Path) -> Fit:
    """Fit rates to the run in a folder.

    Raises ConfigError for a folder without a run, or with too few steps, and InvalidJob for a job that cannot
    be simulated.
    """
    log, file = folder / EVENTS_NAME, folder / "rljob.yaml"
    for needed in (log, file):
        if not needed.is_file():
            raise ConfigError(f"--from: {folder} holds no {needed.name}; name the folder of a run")
    events = cut_rewound(read_events(log))
    steps = sorted(event.step for event in events if isinstance(event, StepEvent))[LEFT_OUT:]
    if len(steps) < FEWEST:
        message = (
            f"--from: {folder} has {len(steps)} steps after its first, and rates need {FEWEST}; "
        )
        raise ConfigError(message + "let it run on, or raise spec.steps")
    early, late = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    job = load_job(file)
    resolved, costs, _ = planned(job, base_dir=folder)
    early_times = times_of(events, early)
    measured = measure(resolved, costs, early_times)
    return Fit(
        name=job.metadata.name,
        steps=(early[0], early[-1]),
        step_seconds=early_times.step,
        judged=(late[0], late[-1]),
        measured=measured,
        observed=times_of(events, late),
        predicted=predict_times(resolved, measured.costs(costs), measured.lengths),
    )


def measure(job: ResolvedJob, costs: Costs, observed: Times) -> Measured:
    """Fit the factors. costs: by arithmetic. observed: of a run of the job."""
    lengths = ObservedLengths(tuple(observed.lengths), observed.common_share, observed.prompt)
    measured = Measured(
        factors=dict.fromkeys(observed.stages, 1.0),
        fixed_seconds=0.0,
        dock_bytes=observed.dock_bytes / job.spec.dock.warehouses,
        lengths=lengths,
    )
    for _ in range(ROUNDS):
        predicted = predict_times(job, measured.costs(costs), lengths)
        factors = {
            name: measured.factors[name] * seconds / predicted.stages[name]
            for name, seconds in observed.stages.items()
            if predicted.stages.get(name)
        }
        measured = replace(measured, factors=factors)
    remaining = observed.step - predict_times(job, measured.costs(costs), lengths).step
    return replace(measured, fixed_seconds=max(0.0, remaining))


def predict_times(job: ResolvedJob, costs: Costs, lengths: Lengths) -> Times:
    """Return the times of a simulated run of the job."""
    events: list[Event] = []
    cut = with_steps(job, min(job.spec.steps, SIMULATED_STEPS))
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            cut, costs=costs, lengths=lengths, seed=1, folder=Path(folder), subscriber=events.append
        )
    steps = [event.step for event in events if isinstance(event, StepEvent)]
    return times_of(events, steps[LEFT_OUT:] or steps)


def times_of(events: Iterable[Event], steps: Sequence[int]) -> Times:
    """Return the times of these steps of a run."""
    step_set = set(steps)
    seconds: list[float] = []
    lengths: list[int] = []
    shown: list[list[int]] = []
    prompts: list[float] = []
    phases: dict[tuple[str, int], list[float]] = {}
    moved, moving = 0, 0.0
    for event in events:
        if isinstance(event, StepEvent) and event.step in step_set:
            seconds.append(event.seconds)
            lengths += lengths_from_metrics(event.metrics)
            prompts += prompt_tokens_of(event)
            shown += [[r.length for r in group.responses if r.length] for group in event.samples]
        elif isinstance(event, PhaseEvent) and event.step in step_set and not event.evaluation:
            worked = event.end - event.start - event.waited_seconds
            phases.setdefault((event.name, event.step), []).append(worked)
        elif isinstance(event, DockEvent) and event.step in step_set:
            timed = [state for state in event.states.values() if state.transfer_seconds]
            moved += sum(state.bytes_read for state in timed)
            moving += sum(state.transfer_seconds for state in timed)
    by_stage: dict[str, list[float]] = {}
    for (name, _), seconds_of_workers in phases.items():
        by_stage.setdefault(name, []).append(
            min(seconds_of_workers) if name in MEETING else statistics.fmean(seconds_of_workers)
        )
    return Times(
        step=statistics.median(seconds),
        stages={
            name: statistics.median(seconds_of_workers)
            for name, seconds_of_workers in by_stage.items()
        },
        lengths=lengths,
        common_share=common_variance_share(lengths, shown),
        prompt=round(statistics.fmean(prompts)) if prompts else None,
        dock_bytes=moved / moving if moving else 0.0,
    )


def lengths_from_metrics(metrics: Mapping[str, float | None]) -> list[int]:
    """Return QUANTILES lengths with the mean, the 80th percentile and the maximum that a step reports.

    Lengths between these are distributed uniformly.
    """
    mean, high, longest = (
        metrics.get(f"response_length/{name}") or 1.0 for name in ("mean", "p80", "max")
    )
    low = min(high, max(1.0, 2.5 * mean - 0.25 * (high + longest) - high))
    lengths = []
    for index in range(QUANTILES):
        share = (index + 0.5) / QUANTILES
        if share < 0.8:
            lengths.append(low + (high - low) * share / 0.8)
        else:
            lengths.append(high + (longest - high) * (share - 0.8) / 0.2)
    return [max(1, round(length)) for length in lengths]


def prompt_tokens_of(event: StepEvent) -> list[float]:
    """Return the mean tokens of a prompt; an empty list if the step does not report them."""
    metric = event.metrics.get
    length, total_rate = metric("response_length/mean"), metric("tokens_per_second")
    response_rate = metric("response_tokens_per_second")
    return (
        [length * (total_rate / response_rate - 1)]
        if length and total_rate and response_rate
        else []
    )


def common_variance_share(lengths: Sequence[int], groups: Iterable[Sequence[int]]) -> float:
    """Return the share of the variance of lengths that the samples of a prompt have in common.

    It is what remains without the variance within prompts. lengths: of all samples. groups: of a few prompts
    each. ALIKE if these have no data. A run reports the prompts that ended first, whose samples may be more
    alike than others.
    """
    many = [group for group in groups if len(group) > 1]
    total = statistics.pvariance(lengths) if lengths else 0.0
    if not many or not total:
        return ALIKE
    within = sum(statistics.pvariance(group) * len(group) for group in many)
    return max(0.0, 1 - within / sum(len(group) - 1 for group in many) / total)


def _slower(passes: PassCosts, times: float) -> PassCosts:
    return PassCosts(
        flop_seconds=times * passes.flop_seconds,
        token_seconds=times * passes.token_seconds,
        pass_seconds=times * passes.pass_seconds,
    )


def fit_text(fit: Fit) -> str:
    """Return the fit as text for the user."""
    lines = [
        f"{fit.name}: rates of steps {fit.steps[0]} to {fit.steps[1]}, beside what steps "
        f"{fit.judged[0]} to {fit.judged[1]} took",
        "",
        f"{'':12s}{'measured':>12s}{'predicted':>12s}{'ratio':>8s}{'times the arithmetic':>24s}",
        _line("a step", fit.observed.step, fit.predicted.step, "s"),
    ]
    predicted = fit.predicted.shares()
    for name, share in fit.observed.shares().items():
        factor = fit.measured.factors.get(name)
        line = _line(name, 100 * share, 100 * predicted.get(name, 0.0), "%")
        lines.append(line + (f"{factor:24.3g}" if factor is not None else ""))
    remaining, (first, last) = fit.measured.fixed_seconds, fit.steps
    lines += [
        "",
        f"beside the stages, a step takes {remaining:.3g} s; "
        f"one of steps {first} to {last} took {fit.step_seconds:.4g} s",
    ]
    return "\n".join(lines)


def _line(name: str, observed: float, predicted: float, unit: str) -> str:
    ratio = f"{predicted / observed:8.2f}" if observed else f"{'':8s}"
    return f"{name:12s}{observed:10.4g} {unit}{predicted:10.4g} {unit}{ratio}"
