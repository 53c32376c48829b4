"""The metrics of a step and of an evaluation, computed from the workers' reports. Pure functions.

Names are those of the events (docs/events.md). Sums of all workers are divided once, here.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rljob_api.model.volumes import tokens_per_second
from rljob_api.topology.devices import off_policy
from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec
from rljob_runtime.record.event_types import (
    Digest,
    EvaluationEvent,
    Group,
    InFlightEvent,
    Memory,
    PassTimes,
    ReshardEvent,
    SetFigures,
    StepEvent,
)
from rljob_runtime.record.reports import (
    AgentFigures,
    GameFigures,
    InFlightFigures,
    ReshardFigures,
    ToolFigures,
)

DELTA_SHARE = 0.1
"""Largest share of the weights' bytes that deltas should take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The result of one evaluation.

    accuracy: share of samples that passed; this is Pass@1 and, with k samples per prompt, Avg@k. stderr: over
    prompts. pass_at_k: share of prompts with at least one sample that passed. name: of the set; empty for the
    job's own held-out prompts, which carry the results of the other sets in `suites`.
    """

    step: int
    name: str = ""
    accuracy: float
    stderr: float
    reward: float
    prompts: int
    samples: int
    pass_at_k: float
    shown: list[Group]
    by_prompt: list[float] = field(default_factory=list)
    suites: "tuple[EvaluationResult, ...]" = ()

    @property
    def k(self) -> int:
        """Number of samples per prompt."""
        return self.samples // max(self.prompts, 1)

    def value(self, metric: str) -> float:
        """Value of spec.evaluation.metric. For a suite, the mean over all prompts of its levels."""
        *suite, name = metric.rsplit("/", 1)
        results = (
            [self]
            if not suite
            else [each for each in self.suites if each.name.split("/")[0] == suite[0]]
        )
        values = [(result.accuracy if name == "accuracy" else result.reward) for result in results]
        prompts = [result.prompts for result in results]
        return sum(v * n for v, n in zip(values, prompts, strict=True)) / max(sum(prompts), 1)

    def event(self, seconds: float) -> EvaluationEvent:
        """Build the `evaluation` event. seconds: duration of the evaluation."""
        suites = {suite.name: suite.figures() for suite in self.suites}
        return EvaluationEvent(
            step=self.step,
            **asdict(self.figures()),
            samples=self.shown,
            suites=suites or None,
            seconds=seconds,
        )

    def figures(self) -> SetFigures:
        """Build the figures of one set."""
        return SetFigures(
            accuracy=self.accuracy,
            stderr=self.stderr,
            reward=self.reward,
            n=self.prompts,
            k=self.k,
            pass_at_k=self.pass_at_k,
            prompt_accuracies=[*self.by_prompt] or None,
        )


def evaluation_metrics(
    reward_reports: Sequence[Any], *, step: int, name: str = ""
) -> EvaluationResult:
    """Compute the accuracy over all samples of a set, with the standard error of the prompt means."""
    totals = [total for report in reward_reports for total in report.totals]
    means = [*_by_prompt(reward_reports, "passes").values()]
    accuracy, deviation = mean_and_deviation(means)
    return EvaluationResult(
        step=step,
        name=name,
        accuracy=accuracy,
        stderr=deviation / math.sqrt(max(len(means), 1)),
        reward=mean_and_deviation(totals)[0],
        prompts=len(means),
        samples=len(totals),
        pass_at_k=sum(mean > 0 for mean in means) / max(len(means), 1),
        by_prompt=means,
        shown=[group for report in reward_reports for group in report.shown][:3],
    )


def pair_metrics(compare_reports: Sequence[Any], *, step: int, name: str = "") -> EvaluationResult:
    """Compute the accuracy and mean reward over held-out pairs.

    accuracy: share of pairs whose preferred response gained more over the reference than the other. reward:
    mean margin β·h.
    """
    margins = [margin for report in compare_reports for margin in report.margins]
    accuracy, deviation = mean_and_deviation([float(margin > 0) for margin in margins])
    return EvaluationResult(
        step=step,
        name=name,
        accuracy=accuracy,
        stderr=deviation / math.sqrt(max(len(margins), 1)),
        reward=mean_and_deviation(margins)[0],
        prompts=len(margins),
        samples=len(margins),
        pass_at_k=accuracy,
        shown=[],
    )


def step_metrics(
    job: ResolvedJob,
    *,
    step: int,
    seconds: float,
    recent_seconds: Sequence[float],
    generate_reports: Sequence[Any],
    reward_reports: Sequence[Any],
    update_reports: Sequence[Any],
    peaks: Mapping[int, Mapping[str, int]],
    phases: Mapping[str, float],
    extra_metrics: Mapping[str, float],
    digest: Digest | None = None,
) -> StepEvent:
    """Build the `step` event.

    peaks: bytes in each device's ledger, by device number. phases: seconds by name. extra_metrics: added to
    those that are computed here.
    """
    spec = job.spec
    ages = _sum_counters(report.rows_by_age for report in update_reports)
    metrics: dict[str, float | None] = {
        **_rewards(reward_reports),
        **(
            _responses(generate_reports, seconds)
            if generate_reports
            else _pairs_read(update_reports, seconds)
        ),
        "tps_eq5": tokens_per_second(
            global_batch_size=spec.batch.global_batch_size,
            samples_per_prompt=spec.batch.samples_per_prompt,
            max_prompt_length=spec.batch.max_prompt_length,
            max_response_length=spec.batch.max_response_length,
            num_devices=len(peaks),
            seconds=seconds,
        ),
        "eta_seconds": (spec.steps - step) * sum(recent_seconds) / max(len(recent_seconds), 1),
        **_pairs_as_means(update_reports[0].metrics),
        **_critic(update_reports[0].critic_metrics),
        **(_staleness(ages) if off_policy(spec) else {}),
        **_tools([report.tools for report in generate_reports if report.tools], generate_reports),
        **_games([report.games for report in generate_reports if report.games], generate_reports),
        **_agents(
            [report.agents for report in generate_reports if report.agents], generate_reports
        ),
        **(
            _partial_rollout(generate_reports, update_reports, extra_metrics)
            if spec.flow.partial_rollout
            else {}
        ),
        **{
            f"memory/peak_bytes/{device}": float(report["total"])
            for device, report in peaks.items()
        },
        **extra_metrics,
    }
    return StepEvent(
        step=step,
        seconds=seconds,
        metrics=metrics,
        staleness={age: ages[age] for age in sorted(ages)},
        passes=_passes([report.passes for report in update_reports]),
        samples=[group for report in reward_reports for group in report.shown][:3],
        phases={**phases},
        prompt_rewards=_prompt_rewards(spec, reward_reports),
        digest=digest,
    )


def _prompt_rewards(spec: ResolvedSpec, reward_reports: Sequence[Any]) -> list[float | None] | None:
    """Mean reward of each prompt, or None if the scored samples are not those of the batch."""
    if spec.flow.partial_rollout or getattr(spec.algorithm.params, "dynamic_sampling", None):
        return None
    return [*_by_prompt(reward_reports, "totals").values()] or None


def _by_prompt(reward_reports: Sequence[Any], values: str) -> dict[int, float]:
    """Mean of the values over each prompt's samples, in the order of the prompt numbers."""
    values_of: dict[int, list[float]] = {}
    for report in reward_reports:
        for prompt, value in zip(report.prompts, getattr(report, values), strict=True):
            values_of.setdefault(prompt, []).append(value)
    return {prompt: sum(values_of[prompt]) / len(values_of[prompt]) for prompt in sorted(values_of)}


def reshard_event(step: int, devices: Sequence[ReshardFigures]) -> ReshardEvent:
    """Build the `reshard` event from the devices' figures."""
    fullest = max(devices, key=lambda device: device.peak_bytes)
    back = sum(device.back_seconds for device in devices)
    waited = sum(min(device.waited_seconds, device.back_seconds) for device in devices)
    return ReshardEvent(
        step=step,
        seconds=max(device.seconds for device in devices),
        received_bytes=sum(device.received_bytes for device in devices),
        delta_bytes=_deltas(devices),
        released_bytes=sum(device.released_bytes for device in devices),
        kept_bytes=sum(device.kept_bytes for device in devices),
        peak_bytes=fullest.peak_bytes,
        bound_bytes=fullest.bound_bytes,
        probe_gap=max(device.probe_gap for device in devices),
        back_seconds=max(device.back_seconds for device in devices),
        overlap=1 - waited / back if back else None,
        gather_seconds=max(device.gather_seconds for device in devices),
        select_seconds=max(device.select_seconds for device in devices),
        swap_seconds=max(device.swap_seconds for device in devices),
        swap_waited_seconds=max(device.swap_waited_seconds for device in devices),
        check_seconds=max(device.check_seconds for device in devices),
        checks=sum(device.checks for device in devices),
        host_bytes=sum(device.host_bytes for device in devices),
        memory=Memory(device=devices.index(fullest), **fullest.course),
    )


def in_flight_event(step: int, devices: Sequence[InFlightFigures]) -> InFlightEvent:
    """Build the `in_flight` event. step: version of the weights."""
    slowest = max(devices, key=lambda device: device.received_seconds)
    gaps = [device.probe_gap for device in devices if device.probe_gap is not None]
    return InFlightEvent(
        step=step,
        before=min(device.before for device in devices),
        received_seconds=slowest.received_seconds,
        hidden_seconds=slowest.hidden_seconds,
        received_bytes=sum(device.received_bytes for device in devices),
        delta_bytes=_deltas(devices),
        tokens=sum(device.tokens for device in devices),
        switch_seconds=max(device.switch_seconds for device in devices),
        check_seconds=max(device.check_seconds for device in devices),
        probe_gap=max(gaps, default=None),
        checks=sum(device.checks for device in devices),
        devices=len(devices),
        generating=sum(device.generating for device in devices),
    )


def _deltas(devices: Sequence[ReshardFigures] | Sequence[InFlightFigures]) -> int | None:
    """Sum of the delta bytes over all devices that received weights."""
    sizes = [device.delta_bytes for device in devices if device.received_bytes]
    return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)


def large_deltas(event: ReshardEvent | InFlightEvent) -> str:
    """Return a warning if the deltas are too large to be useful, otherwise ""."""
    delta_bytes, full_bytes = event.delta_bytes, event.received_bytes
    if delta_bytes is None or not full_bytes or delta_bytes <= DELTA_SHARE * full_bytes:
        return ""
    return (
        f"changes of weights took {delta_bytes / full_bytes:.0%} of their bytes, above {DELTA_SHARE:.0%} "
        "(spec.resharding.deltas): a learning rate this high moves more of them; leave deltas out where the "
        "memory that they keep is wanted"
    )


def _rewards(reward_reports: Sequence[Any]) -> Mapping[str, float]:
    """Metrics of the rewards; empty if the data brings pairs."""
    if not reward_reports:
        return {}
    totals = [total for report in reward_reports for total in report.totals]
    mean, deviation = mean_and_deviation(totals)
    groups = sum(report.groups for report in reward_reports)
    failed = sum(report.failed for report in reward_reports)
    excluded = sum(report.excluded for report in reward_reports)
    return {
        "reward/mean": mean,
        "reward/std": deviation,
        **_reward_parts(reward_reports, len(totals)),
        "pass_rate": mean_and_deviation([p for report in reward_reports for p in report.passes])[0],
        "groups/with_signal": sum(r.groups_with_signal for r in reward_reports) / max(groups, 1),
        "reward/errors": float(failed),
        "reward/error_share": failed / max(len(totals) + excluded, 1),
        "reward/excluded": float(excluded),
    }


def _responses(generate_reports: Sequence[Any], seconds: float) -> Mapping[str, float]:
    samples = sum(report.samples for report in generate_reports)
    response_tokens = sum(report.response_tokens for report in generate_reports)
    prompt_tokens = sum(report.prompt_tokens for report in generate_reports)
    return {
        "response_length/mean": sum(r.sample_tokens for r in generate_reports) / max(samples, 1),
        **_lengths(_sum_counters(report.lengths for report in generate_reports)),
        "response_length/clipped_share": sum(r.clipped for r in generate_reports) / max(samples, 1),
        "tokens_per_second": (prompt_tokens + response_tokens) / seconds,
        "response_tokens_per_second": response_tokens / seconds,
        **_pictures(generate_reports, seconds),
    }


def _pictures(generate_reports: Sequence[Any], seconds: float) -> Mapping[str, float]:
    """Metrics of the pictures; empty for jobs without pictures."""
    shown = [report.shown for report in generate_reports if report.shown is not None]
    if not shown:
        return {}
    return {
        "pictures_per_second": sum(figures.pictures for figures in shown) / seconds,
        "picture_tokens_per_second": sum(figures.tokens for figures in shown) / seconds,
    }


def _sum_counters(counts: Iterable[Counter[int]]) -> Counter[int]:
    """Sum counters in linear time: `sum` would copy the result for each of thousands of counters."""
    total = Counter[int]()
    for each in counts:
        total.update(each)
    return total


def _lengths(samples: Counter[int]) -> Mapping[str, float]:
    """Length that four fifths of the samples do not exceed, and the longest. samples: count by length."""
    if not samples:
        return {}
    remaining, p80 = 0.8 * samples.total(), 0
    for length in sorted(samples):
        if remaining <= 0:
            break
        p80, remaining = length, remaining - samples[length]
    return {"response_length/p80": float(p80), "response_length/max": float(max(samples))}


def _passes(of_ranks: Sequence[PassTimes]) -> PassTimes | None:
    """Passes of the rank that took longest, or None if none was timed."""
    slowest = max(of_ranks, key=lambda passes: sum(passes.seconds))
    return slowest if slowest.count else None


def _tools(figures: Sequence[ToolFigures], generate_reports: Sequence[Any]) -> Mapping[str, float]:
    """Metrics of a job with tools. Only tools that were called have metrics of their own."""
    if not figures:
        return {}
    samples = max(sum(report.samples for report in generate_reports), 1)
    drawn = sum(report.sample_tokens for report in generate_reports)
    metrics = {
        "response_length/with_tools": (drawn + sum(f.tokens for f in figures)) / samples,
        "turns/mean": sum(f.turns for f in figures) / samples,
        "turns/cut_share": sum(f.cut for f in figures) / samples,
        "tools/idle_seconds": max(f.idle_seconds for f in figures),
    }
    calls, errors, timeouts = (
        sum((getattr(f, name) for f in figures), Counter[str]())
        for name in ("calls", "errors", "timeouts")
    )
    for tool, number in sorted(calls.items()):
        metrics[f"tools/{tool}/calls"] = number / samples
        metrics[f"tools/{tool}/error_share"] = errors[tool] / number
        metrics[f"tools/{tool}/timeout_share"] = timeouts[tool] / number
        metrics[f"tools/{tool}/seconds"] = sum(f.seconds.get(tool, 0.0) for f in figures) / number
    return metrics


def _games(figures: Sequence[GameFigures], generate_reports: Sequence[Any]) -> Mapping[str, float]:
    """Metrics of a job with an environment."""
    if not figures:
        return {}
    samples = max(sum(report.samples for report in generate_reports), 1)
    drawn = sum(report.sample_tokens for report in generate_reports)
    return {
        "response_length/with_observations": (drawn + sum(f.tokens for f in figures)) / samples,
        "turns/mean": sum(f.turns for f in figures) / samples,
        "turns/cut_share": sum(f.cut for f in figures) / samples,
        "environment/done_share": sum(f.done for f in figures) / samples,
        "environment/error_share": sum(f.errors for f in figures) / samples,
        "environment/seconds": sum(f.seconds for f in figures)
        / max(sum(f.moves for f in figures), 1),
        "environment/idle_seconds": max(f.idle_seconds for f in figures),
    }


def _agents(
    figures: Sequence[AgentFigures], generate_reports: Sequence[Any]
) -> Mapping[str, float]:
    """Metrics of a job with an agent."""
    if not figures:
        return {}
    samples = max(sum(report.samples for report in generate_reports), 1)
    drawn = sum(report.sample_tokens for report in generate_reports)
    left_out = sum(f.left_out for f in figures)
    return {
        "response_length/with_messages": (drawn + sum(f.tokens for f in figures)) / samples,
        "turns/mean": sum(f.turns for f in figures) / samples,
        "turns/cut_share": sum(f.cut for f in figures) / samples,
        "agent/requests": sum(f.requests for f in figures) / samples,
        "agent/left_out_share": left_out / max(drawn + left_out, 1),
        "agent/error_share": sum(f.errors for f in figures) / samples,
        "agent/seconds": sum(f.seconds for f in figures) / samples,
        "agent/idle_seconds": max(f.idle_seconds for f in figures),
    }


def _pairs_read(update_reports: Sequence[Any], seconds: float) -> Mapping[str, float]:
    return {"tokens_per_second": sum(report.tokens for report in update_reports) / seconds}


def _staleness(ages: Counter[int]) -> Mapping[str, float]:
    mean = sum(age * rows for age, rows in ages.items()) / max(ages.total(), 1)
    return {"staleness": mean, "staleness/max": float(max(ages, default=0))}


def _partial_rollout(
    generate_reports: Sequence[Any],
    update_reports: Sequence[Any],
    extra_metrics: Mapping[str, float],
) -> Mapping[str, float]:
    """Metrics of a partial rollout. With several rounds of dynamic sampling, unfinished groups are counted in
    the last round."""
    rounds = int(extra_metrics.get("dynamic_sampling/rounds", 1))
    last = generate_reports[len(generate_reports) - len(generate_reports) // max(rounds, 1) :]
    tokens = _sum_counters(report.lineage.tokens_by_age for report in update_reports)
    rows = sum(report.rows_by_age.total() for report in update_reports)
    return {
        "staleness/tokens": sum(age * n for age, n in tokens.items()) / max(tokens.total(), 1),
        "partial_rollout/going_on": float(sum(report.going_on for report in last)),
        "partial_rollout/mixed_share": sum(r.lineage.mixed for r in update_reports) / max(rows, 1),
    }


def _pairs_as_means(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Convert the sums over pairs to means over pairs instead of tokens."""
    count = metrics.get("pairs/count")
    if count is None:
        return metrics
    means = {n: v / max(count, 1e-12) for n, v in metrics.items() if n.startswith("pairs/")}
    del means["pairs/count"]
    return {n: v for n, v in metrics.items() if n != "pairs/count"} | means


def _critic(metrics: Mapping[str, float] | None) -> Mapping[str, float]:
    """Metrics of the critic's training; empty without a critic.

    explained_variance: 1 − E[(V − R)²] / Var[R].
    """
    if metrics is None:
        return {}
    variance = metrics["returns/square"] - metrics["returns/mean"] ** 2
    explained = 1 - metrics["error"] / variance if variance > 1e-12 else 0.0
    left_out = ("entropy", "skipped", "returns/square")
    reported = {f"critic/{name}": value for name, value in metrics.items() if name not in left_out}
    return reported | {"critic/explained_variance": explained}


def _reward_parts(reward_reports: Sequence[Any], samples: int) -> Mapping[str, float]:
    sums: Counter[str] = Counter()
    for report in reward_reports:
        sums.update(report.parts)
    return {f"reward/{name}": value / max(samples, 1) for name, value in sums.items()}


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased standard deviation; (0, 0) for an empty sequence."""
    if not values:
        return 0.0, 0.0
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
