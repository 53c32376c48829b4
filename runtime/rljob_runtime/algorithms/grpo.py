"""GRPO (arXiv:2402.03300) and, by its parameters, Dr.GRPO's advantages and DAPO's clip-higher.

`advantages` needs whole groups; `loss` takes any part of the batch. Parameters are the contract's.
"""

# B samples, T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.algorithms.grpo import GRPOParams
from rljob_runtime.algorithms.base import LossOutput, Totals
from rljob_runtime.algorithms.functional import (
    LOG_RATIO_LIMIT,
    clipped_surrogate,
    group_advantages,
    importance,
    kl_divergence,
    sequence_mean,
    token_mean,
)
from rljob_runtime.sample import SampleBatch


def advantages(rewards_B: Tensor, group_of_B: Tensor, params: GRPOParams) -> Tensor:
    """Group-relative advantages, float32 [B]; every group must be whole."""
    return group_advantages(rewards_B, group_of_B, scale=params.scale_advantages)


def loss(logprobs_T: Tensor, batch: SampleBatch, params: GRPOParams, totals: Totals) -> LossOutput:
    """Clipped surrogate plus β·KL, as this part's share of the global mean.

    logprobs_T: natural log, with gradient. batch needs the scalar `advantage`; the field
    `old_logprobs` unless this is the batch's only optimizer step (the ratio is 1 then); the field
    `reference_logprobs` when klCoefficient > 0; and `rollout_logprobs` for the mismatch. The field
    `behaviour_logprobs`, where the tokens were drawn under older weights, corrects for these.
    """
    detached_T = logprobs_T.detach()
    old_T = batch.packed("old_logprobs") if "old_logprobs" in batch.fields else detached_T
    surrogate = clipped_surrogate(
        logprobs_T,
        old_T,
        batch.spread("advantage"),
        clip_low=params.clip_low,
        clip_high=params.clip_high,
    )
    losses_T = surrogate.losses_T
    if "behaviour_logprobs" in batch.fields:
        behaviour_T = batch.packed("behaviour_logprobs")
        losses_T = losses_T * importance(old_T, behaviour_T)
    sums = {
        "clip_fraction": surrogate.clipped_T.sum(),
        "ratio/mean": surrogate.ratio_T.sum(),
    }
    if params.kl_coefficient > 0:
        reference_T = batch.packed("reference_logprobs")
        kl_T = kl_divergence(logprobs_T, reference_T, params.kl_estimator)
        losses_T = losses_T + params.kl_coefficient * kl_T
        sums["kl"] = kl_T.detach().sum()
    mismatch_sums, maxima = _mismatch(old_T, batch.packed("rollout_logprobs"))
    return LossOutput(
        loss=_aggregate(losses_T, batch.sample_of_T(), params, totals),
        mean_over="tokens" if params.loss_aggregation == "token-mean" else "sequences",
        token_sums=sums | mismatch_sums,
        maxima=maxima,
    )


def _aggregate(losses_T: Tensor, sample_of_T: Tensor, params: GRPOParams, totals: Totals) -> Tensor:
    if params.loss_aggregation == "token-mean":
        return token_mean(losses_T, num_tokens=totals.num_tokens)
    return sequence_mean(losses_T, sample_of_T, num_sequences=totals.num_sequences)


def _mismatch(
    update_logprobs_T: Tensor, rollout_logprobs_T: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """How far the update engine's log-probs are from the rollout engine's for the same weights.

    mismatch/kl: k3 estimate of KL(rollout ‖ update), the tokens being the rollout's draws;
    mismatch/max: largest absolute difference in nats; mismatch/ratio_max: largest ratio
    π_update/π_rollout, not limited.
    """
    difference_T = (update_logprobs_T - rollout_logprobs_T).double()
    limited_T = difference_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    bottom = difference_T.new_full((1,), -torch.inf)  # of no tokens at all
    return (
        {"mismatch/kl": (torch.expm1(limited_T) - limited_T).sum()},
        {
            "mismatch/max": torch.cat([difference_T.abs(), bottom]).max(),
            "mismatch/ratio_max": torch.cat([difference_T, bottom]).max().exp(),
        },
    )
