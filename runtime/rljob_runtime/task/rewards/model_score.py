"""Add a score that a reward model or a game assigned to the sample to its rewards. Called by the
reward worker."""

import math
from dataclasses import replace

from rljob_api.spec.workload import Reward
from rljob_runtime.task.rewards.requests import RewardResult


def with_score(
    result: RewardResult, reward: Reward, score: float, *, error: str = ""
) -> RewardResult:
    """Return the result with this reward's part. The score fails if there is an error or if it is not
    finite."""
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
