"""Reports of the workers as the metrics of a step and of an evaluation. Pure functions.

Names are the events' names (`events.py`); sums from all workers are divided once, here.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.rljob import RLJob
from rljob_api.volumes import tokens_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Result of one evaluation. accuracy: share of samples that passed; stderr: over prompts."""

    step: int
    accuracy: float
    stderr: float
    reward: float
    prompts: int
    samples: int
    shown: list[dict[str, Any]]

    def event(self) -> dict[str, Any]:
        """Fields of the `evaluation` event."""
        return {
            "step": self.step,
            "accuracy": self.accuracy,
            "stderr": self.stderr,
            "reward": self.reward,
            "n": self.prompts,
            "samples": self.shown,
        }


def evaluation_metrics(rewarded: Sequence[Any], *, step: int) -> Evaluated:
    """Accuracy over all samples, with the standard error of the prompts' means."""
    totals = [total for report in rewarded for total in report.totals]
    by_prompt: dict[int, list[float]] = {}
    for report in rewarded:
        for prompt, passed in zip(report.prompts, report.passes, strict=True):
            by_prompt.setdefault(prompt, []).append(passed)
    means = [sum(passes) / len(passes) for passes in by_prompt.values()]
    accuracy, deviation = mean_and_deviation(means)
    return Evaluated(
        step=step,
        accuracy=accuracy,
        stderr=deviation / math.sqrt(max(len(means), 1)),
        reward=mean_and_deviation(totals)[0],
        prompts=len(means),
        samples=len(totals),
        shown=[group for report in rewarded for group in report.shown][:3],
    )


def step_metrics(
    job: RLJob,
    *,
    step: int,
    seconds: float,
    recent_seconds: Sequence[float],
    generated: Sequence[Any],
    rewarded: Sequence[Any],
    updated: Sequence[Any],
    peaks: Sequence[Mapping[str, int]],
) -> dict[str, Any]:
    """Fields of the `step` event: metrics and samples. peaks: bytes of each device's ledger."""
    spec = job.spec
    samples = sum(report.samples for report in generated)
    response_tokens = sum(report.response_tokens for report in generated)
    prompt_tokens = sum(report.prompt_tokens for report in generated)
    totals = [total for report in rewarded for total in report.totals]
    reward_mean, reward_std = mean_and_deviation(totals)
    passes = [passed for report in rewarded for passed in report.passes]
    ages = sum((report.rows_by_age for report in updated), Counter[int]())
    metrics: dict[str, float] = {
        "reward/mean": reward_mean,
        "reward/std": reward_std,
        **_reward_parts(rewarded, len(totals)),
        "pass_rate": mean_and_deviation(passes)[0],
        "groups/with_signal": sum(report.groups_with_signal for report in rewarded)
        / max(sum(report.groups for report in rewarded), 1),
        "response_length/mean": sum(r.sample_tokens for r in generated) / max(samples, 1),
        "response_length/clipped_share": sum(r.clipped for r in generated) / max(samples, 1),
        "tokens_per_second": (prompt_tokens + response_tokens) / seconds,
        "response_tokens_per_second": response_tokens / seconds,
        "tps_eq5": tokens_per_second(
            global_batch_size=spec.batch.global_batch_size,
            samples_per_prompt=spec.batch.samples_per_prompt,
            max_prompt_length=spec.batch.max_prompt_length,
            max_response_length=spec.batch.max_response_length,
            num_devices=len(peaks),
            seconds=seconds,
        ),
        "eta_seconds": (spec.steps - step) * sum(recent_seconds) / max(len(recent_seconds), 1),
        "reward/errors": float(sum(report.failed for report in rewarded)),
        **updated[0].metrics,
        **(_staleness(ages) if spec.flow.off_policy else {}),
        **(_partial_rollout(generated, updated) if spec.flow.partial_rollout else {}),
        **{
            f"memory/peak_bytes/{device}": float(report["total"])
            for device, report in enumerate(peaks)
        },
    }
    return {
        "step": step,
        "seconds": seconds,
        "metrics": metrics,
        "staleness": {str(age): ages[age] for age in sorted(ages)},
        "samples": [group for report in rewarded for group in report.shown][:3],
    }


def _staleness(ages: Counter[int]) -> Mapping[str, float]:
    mean = sum(age * rows for age, rows in ages.items()) / max(ages.total(), 1)
    return {"staleness": mean, "staleness/max": float(max(ages, default=0))}


def _partial_rollout(generated: Sequence[Any], updated: Sequence[Any]) -> Mapping[str, float]:
    tokens = sum((report.lineage.tokens_by_age for report in updated), Counter[int]())
    rows = sum(report.rows_by_age.total() for report in updated)
    return {
        "staleness/tokens": sum(age * n for age, n in tokens.items()) / max(tokens.total(), 1),
        "partial_rollout/going_on": float(sum(report.going_on for report in generated)),
        "partial_rollout/mixed_share": sum(r.lineage.mixed for r in updated) / max(rows, 1),
    }


def _reward_parts(rewarded: Sequence[Any], samples: int) -> Mapping[str, float]:
    sums: Counter[str] = Counter()
    for report in rewarded:
        sums.update(report.parts)
    return {f"reward/{name}": value / max(samples, 1) for name, value in sums.items()}


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased standard deviation; (0, 0) for nothing."""
    if not values:
        return 0.0, 0.0
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
