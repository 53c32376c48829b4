"""Compute what is subtracted from rewards before advantages: the KL from the reference, and a penalty
on long responses."""

# B samples, T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.spec.algorithms.dapo import Overlong
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_runtime.algorithms.functional import kl_divergence
from rljob_runtime.samples.sample import SampleBatch


def kl_penalty(samples: SampleBatch, params: PolicyParams) -> Tensor:
    """Return β·KL of each response token [T] for the policy that drew it; zeros unless klIn is
    `reward`."""
    if params.kl_coefficient == 0 or params.kl_in != "reward":
        return torch.zeros(samples.num_tokens)
    source = "old_logprobs" if "old_logprobs" in samples.fields else "rollout_logprobs"
    reference_T = samples.packed("reference_logprobs")
    kl_T = kl_divergence(samples.packed(source), reference_T, params.kl_estimator)
    return params.kl_coefficient * kl_T


def rewards_less_kl(samples: SampleBatch, params: PolicyParams) -> Tensor:
    """Return R − β·Σ KL of each sample, [B], from which advantages of full responses are computed."""
    rewards_B = samples.scalars["reward"]
    penalty_T = kl_penalty(samples, params).to(rewards_B.dtype)
    return rewards_B.index_add(0, samples.sample_of_T(), penalty_T, alpha=-1)


def overlong_penalty(lengths_B: Tensor, overlong: Overlong) -> Tensor:
    """Return the penalty on each response's length, [B] ≥ 0 (DAPO, arXiv:2503.14476, eq. 13, times the
    penalty).

    It is 0 up to max_length − buffer_tokens, then grows linearly, and is the full penalty from max_length
    on.
    """
    assert overlong.max_length is not None, "resolve() fills overlong.maxLength"
    over_B = lengths_B - (overlong.max_length - overlong.buffer_tokens)
    return overlong.penalty * (over_B / overlong.buffer_tokens).clamp(0, 1)
