"""What a recorded run says of its devices' rates, and how well it is foretold by them. Called by the CLI.

The run's job is simulated with the planner's arithmetic; of each stage, the seconds that were measured are so
many times those simulated. The arithmetic keeps its form, so that these factors serve other layouts, lengths
and batches on the same devices. Rates come from the earlier half of the steps, and are judged by the later.
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
from rljob_runtime.simulate.costs import Costs, Passes, planned
from rljob_runtime.simulate.draws import Lengths, Observed
from rljob_runtime.simulate.run import simulate, with_steps

LEFT_OUT = 1
"""Steps at the beginning, in which engines and processes start."""
FEWEST = 4
"""Steps after them."""
SIMULATED_STEPS = 6
MEETING = ("update", "critic")
"""Stages whose workers end together: who takes least has waited for nobody."""
ALIKE = 0.5
"""Of variance that is taken to be common to a prompt's samples where a run shows none."""
ROUNDS = 3
"""Of corrections: a stage has parts that its factor does not stretch, as the way of rows."""
QUANTILES = 200
"""Lengths that stand for those of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Medians over steps. step: seconds. stages: of a worker at each, without waits for rows. lengths: of
    responses, those of all steps; together, prompt: as of `Observed`. dock_bytes: that a second moves from
    the warehouses; 0 where nothing was timed."""

    step: float
    stages: Mapping[str, float]
    lengths: Sequence[int]
    together: float
    prompt: int | None
    dock_bytes: float

    def shares(self) -> dict[str, float]:
        """Of the step, by stage."""
        return {name: seconds / self.step for name, seconds in self.stages.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """factors: by stage, times that it takes what arithmetic says. fixed_seconds: of a step, beside its
    stages. dock_bytes: as in `Times`, of all warehouses."""

    factors: Mapping[str, float]
    fixed_seconds: float
    dock_bytes: float
    lengths: Lengths

    def costs(self, costs: Costs) -> Costs:
        """Those of arithmetic, corrected."""
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
    """steps: first and last that rates were taken of, step_seconds: what they took. judged: those that `told`
    stands beside."""

    name: str
    steps: tuple[int, int]
    step_seconds: float
    judged: tuple[int, int]
    measured: Measured
    seen: Times
    told: Times

    def json(self) -> dict[str, Any]:
        """For a file."""
        return {
            "job": self.name,
            "fitted_steps": list(self.steps),
            "fitted_step_seconds": self.step_seconds,
            "judged_steps": list(self.judged),
            "factors": dict(self.measured.factors),
            "fixed_seconds": self.measured.fixed_seconds,
            "dock_bytes_per_second": self.measured.dock_bytes,
            "measured": {"step_seconds": self.seen.step, "shares": self.seen.shares()},
            "predicted": {"step_seconds": self.told.step, "shares": self.told.shares()},
        }


def fit_run(folder: Path) -> Fit:
    """Raises ConfigError for a folder that holds no run, or one with too few steps, and InvalidJob for a job
    that cannot be simulated."""
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
    taken = times_of(events, early)
    measured = measure(resolved, costs, taken)
    return Fit(
        name=job.metadata.name,
        steps=(early[0], early[-1]),
        step_seconds=taken.step,
        judged=(late[0], late[-1]),
        measured=measured,
        seen=times_of(events, late),
        told=foretold(resolved, measured.costs(costs), measured.lengths),
    )


def measure(job: ResolvedJob, costs: Costs, seen: Times) -> Measured:
    """costs: by arithmetic. seen: of a run of the job."""
    lengths = Observed(tuple(seen.lengths), seen.together, seen.prompt)
    found = Measured(
        factors=dict.fromkeys(seen.stages, 1.0),
        fixed_seconds=0.0,
        dock_bytes=seen.dock_bytes / job.spec.dock.warehouses,
        lengths=lengths,
    )
    for _ in range(ROUNDS):
        told = foretold(job, found.costs(costs), lengths)
        factors = {
            name: found.factors[name] * seconds / told.stages[name]
            for name, seconds in seen.stages.items()
            if told.stages.get(name)
        }
        found = replace(found, factors=factors)
    rest = seen.step - foretold(job, found.costs(costs), lengths).step
    return replace(found, fixed_seconds=max(0.0, rest))


def foretold(job: ResolvedJob, costs: Costs, lengths: Lengths) -> Times:
    """What a simulated run of the job takes."""
    events: list[Event] = []
    cut = with_steps(job, min(job.spec.steps, SIMULATED_STEPS))
    with tempfile.TemporaryDirectory() as folder:
        simulate(
            cut, costs=costs, lengths=lengths, seed=1, folder=Path(folder), subscriber=events.append
        )
    steps = [event.step for event in events if isinstance(event, StepEvent)]
    return times_of(events, steps[LEFT_OUT:] or steps)


def times_of(events: Iterable[Event], steps: Sequence[int]) -> Times:
    """Of these steps of a run."""
    wanted = set(steps)
    seconds: list[float] = []
    lengths: list[int] = []
    shown: list[list[int]] = []
    prompts: list[float] = []
    phases: dict[tuple[str, int], list[float]] = {}
    moved, moving = 0, 0.0
    for event in events:
        if isinstance(event, StepEvent) and event.step in wanted:
            seconds.append(event.seconds)
            lengths += lengths_in(event.metrics)
            prompts += prompt_in(event)
            shown += [[r.length for r in group.responses if r.length] for group in event.samples]
        elif isinstance(event, PhaseEvent) and event.step in wanted and not event.evaluation:
            worked = event.end - event.start - event.waited_seconds
            phases.setdefault((event.name, event.step), []).append(worked)
        elif isinstance(event, DockEvent) and event.step in wanted:
            timed = [state for state in event.states.values() if state.transfer_seconds]
            moved += sum(state.bytes_read for state in timed)
            moving += sum(state.transfer_seconds for state in timed)
    by_stage: dict[str, list[float]] = {}
    for (name, _), each in phases.items():
        by_stage.setdefault(name, []).append(
            min(each) if name in MEETING else statistics.fmean(each)
        )
    return Times(
        step=statistics.median(seconds),
        stages={name: statistics.median(each) for name, each in by_stage.items()},
        lengths=lengths,
        together=in_common(lengths, shown),
        prompt=round(statistics.fmean(prompts)) if prompts else None,
        dock_bytes=moved / moving if moving else 0.0,
    )


def lengths_in(metrics: Mapping[str, float | None]) -> list[int]:
    """QUANTILES lengths with the mean, the 80th percentile and the longest that a step tells: between these,
    as many of one length as of another."""
    mean, high, longest = (
        metrics.get(f"response_length/{name}") or 1.0 for name in ("mean", "p80", "max")
    )
    low = min(high, max(1.0, 2.5 * mean - 0.25 * (high + longest) - high))
    found = []
    for place in range(QUANTILES):
        share = (place + 0.5) / QUANTILES
        if share < 0.8:
            found.append(low + (high - low) * share / 0.8)
        else:
            found.append(high + (longest - high) * (share - 0.8) / 0.2)
    return [max(1, round(length)) for length in found]


def prompt_in(event: StepEvent) -> list[float]:
    """Tokens of a prompt, on average; none where the step does not tell them."""
    each = event.metrics.get
    length, both = each("response_length/mean"), each("tokens_per_second")
    own = each("response_tokens_per_second")
    return [length * (both / own - 1)] if length and both and own else []


def in_common(lengths: Sequence[int], groups: Iterable[Sequence[int]]) -> float:
    """The share of the variance of lengths that the samples of a prompt have in common: all but what is left
    of it within a prompt. lengths: of all samples. groups: of a prompt each, of a few prompts. ALIKE where
    these do not say. A run shows the prompts that ended first, whose samples may be more alike than
    others."""
    many = [group for group in groups if len(group) > 1]
    total = statistics.pvariance(lengths) if lengths else 0.0
    if not many or not total:
        return ALIKE
    within = sum(statistics.pvariance(group) * len(group) for group in many)
    return max(0.0, 1 - within / sum(len(group) - 1 for group in many) / total)


def _slower(passes: Passes, times: float) -> Passes:
    return Passes(
        flop_seconds=times * passes.flop_seconds,
        token_seconds=times * passes.token_seconds,
        pass_seconds=times * passes.pass_seconds,
    )


def fit_text(found: Fit) -> str:
    """What a user reads."""
    lines = [
        f"{found.name}: rates of steps {found.steps[0]} to {found.steps[1]}, beside what steps "
        f"{found.judged[0]} to {found.judged[1]} took",
        "",
        f"{'':12s}{'measured':>12s}{'predicted':>12s}{'ratio':>8s}{'times the arithmetic':>24s}",
        _line("a step", found.seen.step, found.told.step, "s"),
    ]
    told = found.told.shares()
    for name, share in found.seen.shares().items():
        factor = found.measured.factors.get(name)
        line = _line(name, 100 * share, 100 * told.get(name, 0.0), "%")
        lines.append(line + (f"{factor:24.3g}" if factor is not None else ""))
    rest, (first, last) = found.measured.fixed_seconds, found.steps
    lines += [
        "",
        f"beside the stages, a step takes {rest:.3g} s; "
        f"one of steps {first} to {last} took {found.step_seconds:.4g} s",
    ]
    return "\n".join(lines)


def _line(name: str, seen: float, told: float, unit: str) -> str:
    ratio = f"{told / seen:8.2f}" if seen else f"{'':8s}"
    return f"{name:12s}{seen:10.4g} {unit}{told:10.4g} {unit}{ratio}"
