"""Implement DPO (arXiv:2305.18290, eq. 7) on pairs of the data, or of a prompt's best and worst rollouts.

`prepare` needs full groups. A micro-batch contains both responses of a pair. Parameters are defined by
the spec.
"""

# B samples, G groups, P pairs, T response tokens of all samples together

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_api.spec.algorithms.dpo import DPOParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.samples.sample import SampleBatch


def prepare(samples: SampleBatch, params: DPOParams) -> None:
    """Add the scalars `advantage` and `group_size` to each sample.

    `advantage` is 1 for the chosen and −1 for the rejected sample of each group whose rewards differ (the
    first of equals). `group_size` is the number of its samples with tokens. Samples without tokens are in
    no pair.
    """
    rewards_B, group_of_B = samples.scalars["reward"], samples.group_of_B
    has_tokens_B = torch.tensor(samples.lengths) > 0
    side_B, size_B = torch.zeros_like(rewards_B), torch.zeros_like(rewards_B)
    for group in range(len(samples.prompts)):
        members = ((group_of_B == group) & has_tokens_B).nonzero()[:, 0]
        size_B[members] = float(len(members))
        if len(members) and rewards_B[members].max() > rewards_B[members].min():
            side_B[members[rewards_B[members].argmax()]] = 1.0
            side_B[members[rewards_B[members].argmin()]] = -1.0
    samples.scalars.update(advantage=side_B, group_size=size_B)


def loss(logprobs_T: Tensor, batch: SampleBatch, params: DPOParams, totals: Totals) -> LossOutput:
    """Return the mean over prompts of their pairs' losses; a prompt without a pair counts 0.

    Metrics are sums over pairs, which `metrics` turns into means: pairs/count, pairs/margin β·h,
    pairs/accuracy.
    """
    chosen_P, _ = _pairs(batch)
    margin_P = margins(logprobs_T, batch, params)
    losses_P = pair_losses(margin_P, params) * batch.scalars["group_size"][chosen_P]
    reward_margin_P = params.beta * margin_P.detach()
    return LossOutput(
        loss=(losses_P.sum() + 0.0 * logprobs_T.sum()) / max(totals.num_sequences, 1),
        mean_over="sequences",
        token_sums={
            "pairs/count": torch.tensor(float(len(margin_P))),
            "pairs/margin": reward_margin_P.sum(),
            "pairs/accuracy": (reward_margin_P > 0).sum(),
        },
        maxima={},
    )


def margins(logprobs_T: Tensor, batch: SampleBatch, params: DPOParams) -> Tensor:
    """Return h of each pair of `prepare`, by group [P], in nats: (π_c − π_r) − (ref_c − ref_r)."""
    chosen_P, rejected_P = _pairs(batch)
    gained_B = _sums(logprobs_T - batch.packed("reference_logprobs"), batch, params)
    return gained_B[chosen_P] - gained_B[rejected_P]


def pair_losses(margin_P: Tensor, params: DPOParams) -> Tensor:
    """Return the loss of each pair [P]. margin_P: the result of `margins`."""
    if params.pair_loss == "ipo":
        return (margin_P - 1 / (2 * params.beta)).square()
    log_chosen_P, log_rejected_P = (
        F.logsigmoid(params.beta * margin_P),
        F.logsigmoid(-params.beta * margin_P),
    )
    return -(1 - params.label_smoothing) * log_chosen_P - params.label_smoothing * log_rejected_P


def _pairs(batch: SampleBatch) -> tuple[Tensor, Tensor]:
    """Return the indices of the chosen and the rejected sample of each pair, by group."""
    side_B, group_of_B = batch.scalars["advantage"], batch.group_of_B
    chosen, rejected = (side_B > 0).nonzero()[:, 0], (side_B < 0).nonzero()[:, 0]
    chosen = chosen[group_of_B[chosen].argsort()]
    rejected = rejected[group_of_B[rejected].argsort()]
    assert torch.equal(group_of_B[chosen], group_of_B[rejected]), "a pair lies in one micro-batch"
    return chosen, rejected


def _sums(values_T: Tensor, batch: SampleBatch, params: DPOParams) -> Tensor:
    """Return the sum over each sample's tokens [B], or their mean with `length_normalized`."""
    lengths_B = torch.tensor(batch.lengths)
    sums_B = values_T.new_zeros(len(lengths_B)).index_add(0, batch.sample_of_T(), values_T)
    return sums_B / lengths_B.clamp(min=1) if params.length_normalized else sums_B
