"""Implement GRPO (arXiv:2402.03300) and, by its parameters, DAPO's clip-higher.

`prepare` needs complete groups; `loss` takes any subset of the batch. Parameters are defined by the spec.
"""

# B samples, T response tokens of all samples together

from torch import Tensor

from rljob_api.spec.algorithms.grpo import GRPOParams
from rljob_api.spec.algorithms.policy_params import ClippedParams, PolicyParams
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.functional import clipped_surrogate, group_advantages
from rljob_runtime.algorithms.objective import objective, old_logprobs
from rljob_runtime.algorithms.shaping import rewards_less_kl
from rljob_runtime.samples.sample import SampleBatch


def prepare(samples: SampleBatch, params: GRPOParams) -> None:
    """Add `advantage`, relative to the group; every group must be complete."""
    _prepare(samples, params, scale=params.scale_advantages)


def prepare_scaled(samples: SampleBatch, params: PolicyParams) -> None:
    """Add GRPO's default `advantage`, for algorithms that share it without having the parameter
    `scale_advantages`."""
    _prepare(samples, params, scale=True)


def _prepare(samples: SampleBatch, params: PolicyParams, *, scale: bool) -> None:
    samples.scalars["advantage"] = group_advantages(
        rewards_less_kl(samples, params), samples.group_of_B, scale=scale
    )


def loss(
    logprobs_T: Tensor, batch: SampleBatch, params: ClippedParams, totals: Totals
) -> LossOutput:
    """Return PPO's clipped surrogate loss; see `objective`."""
    surrogate = clipped_surrogate(
        logprobs_T,
        old_logprobs(logprobs_T, batch, params),
        batch.advantages_T(),
        clip_low=params.clip_low,
        clip_high=params.clip_high,
    )
    return objective(surrogate, logprobs_T, batch, params, totals)
