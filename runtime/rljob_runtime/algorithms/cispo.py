"""Implement CISPO (MiniMax-M1, arXiv:2506.13585): clip a token's weight, so that every token keeps a
gradient."""

# T response tokens of all samples together

from torch import Tensor

from rljob_api.spec.algorithms.cispo import CISPOParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import Surrogate, limited_ratio
from rljob_runtime.algorithms.grpo import prepare_scaled as prepare
from rljob_runtime.algorithms.objective import objective, old_logprobs
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def loss(logprobs_T: Tensor, batch: SampleBatch, params: CISPOParams, totals: Totals) -> LossOutput:
    """Return the mean of −sg(clip(r, weightLow, weightHigh))·A·log π (eq. 4 and 5)."""
    ratio_T = limited_ratio(logprobs_T, old_logprobs(logprobs_T, batch, params)).detach()
    weight_T = ratio_T.clamp(params.weight_low, params.weight_high)
    surrogate = Surrogate(
        losses_T=-weight_T * batch.advantages_T() * logprobs_T,
        ratio_T=ratio_T,
        clipped_T=weight_T != ratio_T,
    )
    return objective(surrogate, logprobs_T, batch, params, totals)
