"""The reward model's score among a sample's rewards. Called by the reward worker."""

import math
from dataclasses import replace

from rljob_api.workload import Reward
from rljob_runtime.rewards.requests import RewardResult


def with_score(result: RewardResult, reward: Reward, score: float) -> RewardResult:
    """The result with this reward's part; a score that is not finite counts 0, as an error."""
    errors = dict(result.errors)
    if not math.isfinite(score):
        errors[reward.name] = f"reward {reward.name}: the reward model's score is {score}"
        score = 0.0
    elif reward.threshold is not None:
        score = float(score >= reward.threshold)
    return replace(
        result,
        total=result.total + reward.weight * score,
        parts={**result.parts, reward.name: score},
        errors=errors,
    )
