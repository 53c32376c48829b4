"""A score that came with the sample, of a reward model or of its game, among its rewards. Called by the
reward worker."""

import math
from dataclasses import replace

from rljob_api.spec.workload import Reward
from rljob_runtime.task.rewards.requests import RewardResult


def with_score(
    result: RewardResult, reward: Reward, score: float, *, error: str = ""
) -> RewardResult:
    """The result with this reward's part; with an error, and where it is not finite, it has failed."""
    errors = dict(result.errors)
    if error or not math.isfinite(score):
        error = error or f"the reward model's score is {score}"
        errors[reward.name] = f"reward {reward.name}: {error}"
        score = 0.0
    elif reward.threshold is not None:
        score = float(score >= reward.threshold)
    return replace(
        result,
        total=result.total + reward.weight * score,
        parts={**result.parts, reward.name: score},
        errors=errors,
    )
