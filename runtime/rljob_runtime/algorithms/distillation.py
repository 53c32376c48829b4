"""Implement on-policy distillation: the reverse KL from a teacher, on tokens that the policy drew.

Agarwal et al. (arXiv:2306.13649) with λ = 1 and the reverse KL, as a policy gradient. Each token's
advantage is log π_teacher − log π of the policy before the step, for this token alone. If the policy drew
the tokens, the gradient is that of KL(π ‖ π_teacher) of the next token, averaged over the tokens'
positions.
"""

# B samples, T response tokens of all samples together

from dataclasses import replace

import torch
from torch import Tensor

from rljob_api.spec.algorithms.distillation import DistillationParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import clipped_surrogate, group_advantages
from rljob_runtime.algorithms.objective import objective, old_logprobs, update_logprobs
from rljob_runtime.samples.sample import SampleBatch


def prepare(samples: SampleBatch, params: DistillationParams) -> None:
    """Add `advantage`, computed from the rewards; every group must be complete if rewards count."""
    rewards_B = samples.scalars["reward"]
    advantages_B = torch.zeros_like(rewards_B)
    if params.reward_coefficient > 0:
        advantages_B = group_advantages(rewards_B, samples.group_of_B, scale=True)
    samples.scalars["advantage"] = params.reward_coefficient * advantages_B


def loss(
    logprobs_T: Tensor, batch: SampleBatch, params: DistillationParams, totals: Totals
) -> LossOutput:
    """Return PPO's clipped surrogate on the sum of the teacher's and the rewards' advantages; see
    `objective`.

    batch: has the field `teacher_logprobs`. Metric teacher/kl: log π − log π_teacher, nats per token.
    """
    gap_T = update_logprobs(logprobs_T, batch) - batch.packed("teacher_logprobs")
    surrogate = clipped_surrogate(
        logprobs_T,
        old_logprobs(logprobs_T, batch, params),
        batch.advantages_T() - gap_T,
        clip_low=params.clip_low,
        clip_high=params.clip_high,
    )
    output = objective(surrogate, logprobs_T, batch, params, totals)
    return replace(output, token_sums={**output.token_sums, "teacher/kl": gap_T.sum()})
