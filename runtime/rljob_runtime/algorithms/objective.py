"""Compute what the losses of all policy-gradient algorithms share: KL, correction, aggregation, metrics.

An algorithm's file defines the loss of a token (`Surrogate`). `objective` turns it into the micro-batch's
share of the loss.
"""

# B samples, T response tokens of all samples together

from typing import Literal

import torch
from torch import Tensor

from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.corrections import correction
from rljob_runtime.algorithms.functional import (
    LOG_RATIO_LIMIT,
    Surrogate,
    kl_divergence,
    sequence_mean,
    token_mean,
)
from rljob_runtime.samples.sample import SampleBatch


def old_logprobs(logprobs_T: Tensor, batch: SampleBatch, params: PolicyParams) -> Tensor:
    """Return the log-probs that the ratio is taken against, [T], chosen by params.ratio_against.

    `update`: those of the weights before the step. If this is the batch's only optimizer step and the
    field `old_logprobs` is missing, these are the current weights, and the ratio is 1.
    """
    if params.ratio_against == "rollout":
        return batch.packed("rollout_logprobs")
    return update_logprobs(logprobs_T, batch)


def objective(
    surrogate: Surrogate,
    logprobs_T: Tensor,
    batch: SampleBatch,
    params: PolicyParams,
    totals: Totals,
) -> LossOutput:
    """Correct the surrogate for the policy that drew the tokens, add β·KL, and return the share of the
    global mean.

    logprobs_T: natural log, with gradient. batch needs the fields `rollout_logprobs`, and
    `reference_logprobs` when klCoefficient > 0. If it has the field `behaviour_logprobs`, older weights
    may have drawn the tokens.
    """
    update_T, rollout_T = update_logprobs(logprobs_T, batch), batch.packed("rollout_logprobs")
    sample_of_T = batch.sample_of_T()
    sums = {
        "clip_fraction": surrogate.clipped_T.sum(),
        "ratio/mean": surrogate.ratio_T.sum(),
    }
    losses_T = surrogate.losses_T
    factor_T = correction(
        update_T,
        batch.packed("behaviour_logprobs") if "behaviour_logprobs" in batch.fields else rollout_T,
        sample_of_T,
        params.rollout_correction,
        older="behaviour_logprobs" in batch.fields,
    )
    if factor_T is not None:
        losses_T = losses_T.where(factor_T != 0, 0.0) * factor_T
        sums["correction/mean"] = factor_T.sum()
        sums["correction/masked"] = (factor_T == 0).sum()
    if "reference_logprobs" in batch.fields and params.kl_coefficient > 0:
        kl_T = kl_divergence(logprobs_T, batch.packed("reference_logprobs"), params.kl_estimator)
        sums["kl"] = kl_T.detach().sum()
        if params.kl_in == "loss":
            losses_T = losses_T + params.kl_coefficient * kl_T
    mismatch_sums, maxima = _mismatch(update_T, rollout_T)
    return LossOutput(
        loss=aggregate(losses_T, sample_of_T, params, totals),
        mean_over=mean_over(params),
        token_sums=sums | mismatch_sums,
        maxima=maxima,
    )


def aggregate(
    losses_T: Tensor, sample_of_T: Tensor, params: PolicyParams, totals: Totals
) -> Tensor:
    """Return this micro-batch's share of the global batch's mean, by params.loss_aggregation."""
    if params.loss_aggregation == "token-mean":
        return token_mean(losses_T, num_tokens=totals.num_tokens)
    if params.loss_aggregation == "sequence-mean":
        return sequence_mean(losses_T, sample_of_T, num_sequences=totals.num_sequences)
    assert params.length_divisor is not None, "resolve() fills lengthDivisor"
    return losses_T.sum() / (max(totals.num_sequences, 1) * params.length_divisor)


def mean_over(params: PolicyParams) -> Literal["tokens", "sequences"]:
    """Return the kind of count that `aggregate` divides by."""
    return "tokens" if params.loss_aggregation == "token-mean" else "sequences"


def update_logprobs(logprobs_T: Tensor, batch: SampleBatch) -> Tensor:
    """Return the update engine's log-probs of the tokens at the start of the step, without gradient
    [T]."""
    return batch.packed("old_logprobs") if "old_logprobs" in batch.fields else logprobs_T.detach()


def _mismatch(
    update_logprobs_T: Tensor, rollout_logprobs_T: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Measure how far the update engine's log-probs are from the rollout engine's for the same weights.

    mismatch/kl: k3 estimate of KL(rollout ‖ update), the tokens being the rollout's draws; mismatch/max:
    largest absolute difference in nats; mismatch/ratio_max: largest ratio π_update/π_rollout, not
    limited.
    """
    difference_T = (update_logprobs_T - rollout_logprobs_T).double()
    limited_T = difference_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    bottom = difference_T.new_full((1,), -torch.inf)  # the maximum without any tokens
    return (
        {"mismatch/kl": (torch.expm1(limited_T) - limited_T).sum()},
        {
            "mismatch/max": torch.cat([difference_T.abs(), bottom]).max(),
            "mismatch/ratio_max": torch.cat([difference_T, bottom]).max().exp(),
        },
    )
