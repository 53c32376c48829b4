"""Implement PPO (arXiv:1707.06347): a clipped surrogate on advantages of a critic, and the critic's loss.

`prepare` and `loss` belong to the policy, `prepare_critic` and `critic_loss` to the critic. Both estimate
the same advantages from the same columns. Parameters are defined by the spec.
"""

# B samples, T response tokens of all samples together

from dataclasses import replace

import torch
from torch import Tensor

from rljob_api.spec.algorithms.ppo import PPOParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import Surrogate, clipped_surrogate, kl_divergence
from rljob_runtime.algorithms.objective import objective, old_logprobs
from rljob_runtime.algorithms.values import AdvantageEstimates, generalized_advantages, value_loss
from rljob_runtime.samples.sample import SampleBatch


def prepare(samples: SampleBatch, params: PPOParams) -> None:
    """Add the field `advantages`, one value per response token."""
    estimates = estimate(samples, params)
    samples.fields["advantages"] = samples.split_by_sample(estimates.advantages_T)


def loss(logprobs_T: Tensor, batch: SampleBatch, params: PPOParams, totals: Totals) -> LossOutput:
    """Return PPO's clipped surrogate loss, bounded for negative advantages; see `objective`."""
    advantages_T = batch.advantages_T()
    surrogate = clipped_surrogate(
        logprobs_T,
        old_logprobs(logprobs_T, batch, params),
        advantages_T,
        clip_low=params.clip_low,
        clip_high=params.clip_high,
    )
    if params.dual_clip is not None:
        surrogate = apply_dual_clip(surrogate, advantages_T, params.dual_clip)
    return objective(surrogate, logprobs_T, batch, params, totals)


def prepare_critic(samples: SampleBatch, params: PPOParams) -> None:
    """Add the field `returns`, which `critic_loss` reads in addition to `values`."""
    samples.fields["returns"] = samples.split_by_sample(estimate(samples, params).returns_T)


def critic_loss(
    values_T: Tensor, batch: SampleBatch, params: PPOParams, totals: Totals
) -> LossOutput:
    """Return the clipped value loss."""
    return value_loss(values_T, batch, totals, clip=params.value_clip)


def estimate(samples: SampleBatch, params: PPOParams) -> AdvantageEstimates:
    """Compute GAE from the field `values` and the rewards.

    A sample's scalar `reward` is assigned to its last token. With KL in the reward, each token's reward
    is reduced by β·KL. The KL is of `rollout_logprobs`, which drew the tokens, from `reference_logprobs`.
    """
    lengths = samples.lengths
    rewards_T = torch.zeros(sum(lengths))
    ends_B = torch.tensor(lengths).cumsum(0) - 1
    has_tokens_B = torch.tensor(lengths) > 0
    rewards_T[ends_B[has_tokens_B]] = samples.scalars["reward"][has_tokens_B]
    if params.kl_coefficient > 0 and params.kl_in == "reward":
        estimator = params.kl_estimator
        kl_T = kl_divergence(
            samples.packed("rollout_logprobs"), samples.packed("reference_logprobs"), estimator
        )
        rewards_T = rewards_T - params.kl_coefficient * kl_T
    return generalized_advantages(
        rewards_T,
        samples.packed("values"),
        lengths,
        gamma=params.discount,
        gae_lambda=params.gae_lambda,
    )


def apply_dual_clip(surrogate: Surrogate, advantages_T: Tensor, limit: float) -> Surrogate:
    """Limit losses of negative advantages to limit·|A| (arXiv:1912.09729, eq. 3)."""
    most_T = -advantages_T * limit
    bounded_T = (advantages_T < 0) & (surrogate.losses_T > most_T)
    return replace(
        surrogate,
        losses_T=torch.where(bounded_T, most_T, surrogate.losses_T),
        clipped_T=surrogate.clipped_T | bounded_T.detach(),
    )
