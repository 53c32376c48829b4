"""Implement SAPO (arXiv:2511.20347): a sigmoid gate of the ratio, steeper for negative advantages."""

# T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.spec.algorithms.sapo import SAPOParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import Surrogate, limited_ratio
from rljob_runtime.algorithms.grpo import prepare_scaled as prepare
from rljob_runtime.algorithms.objective import objective, old_logprobs
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def loss(logprobs_T: Tensor, batch: SampleBatch, params: SAPOParams, totals: Totals) -> LossOutput:
    """Return the mean of −(4/τ)·σ(τ·(r − 1))·A, whose slope at r = 1 is that of r·A."""
    ratio_T = limited_ratio(logprobs_T, old_logprobs(logprobs_T, batch, params))
    advantages_T = batch.advantages_T()
    steep_T = torch.full_like(ratio_T, params.temperature_negative)
    steep_T = steep_T.where(advantages_T <= 0, params.temperature_positive).detach()
    gate_T = torch.sigmoid(steep_T * (ratio_T - 1)) * 4 / steep_T
    surrogate = Surrogate(
        losses_T=-gate_T * advantages_T,
        ratio_T=ratio_T.detach(),
        clipped_T=torch.zeros_like(ratio_T, dtype=torch.bool),
    )
    return objective(surrogate, logprobs_T, batch, params, totals)
