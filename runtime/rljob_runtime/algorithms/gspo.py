"""Implement GSPO (arXiv:2507.18071): clip the ratio of a full sequence, the geometric mean of its
tokens' ratios."""

# B samples, T response tokens of all samples together

from torch import Tensor

from rljob_api.spec.algorithms.gspo import GSPOParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import clipped_surrogate, mean_over_sequence
from rljob_runtime.algorithms.grpo import prepare_scaled as prepare
from rljob_runtime.algorithms.objective import objective, old_logprobs
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def loss(logprobs_T: Tensor, batch: SampleBatch, params: GSPOParams, totals: Totals) -> LossOutput:
    """Return the mean of −min(s·A, clip(s)·A) with s = exp(mean log-ratio of the sequence), at most e^10.

    A token's value is that of its sequence. Its gradient is that of its own log-prob, as in the paper's
    GSPO-token (eq. 14), which equals GSPO with one advantage per sequence.
    """
    old_T = old_logprobs(logprobs_T, batch, params)
    log_ratio_T = (logprobs_T - old_T).detach()
    log_s_T = mean_over_sequence(log_ratio_T, batch.sample_of_T())
    log_ratio_s_T = (logprobs_T - logprobs_T.detach() + log_s_T).clamp(max=10.0)
    surrogate = clipped_surrogate(
        log_ratio_s_T,
        log_ratio_s_T.detach() * 0,
        batch.advantages_T(),
        clip_low=params.clip_low,
        clip_high=params.clip_high,
    )
    return objective(surrogate, logprobs_T, batch, params, totals)
