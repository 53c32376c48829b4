"""What is taken off rewards before advantages are made: the KL from the reference, and too long responses."""

# B samples, T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.spec.algorithms.dapo import Overlong
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_runtime.algorithms.functional import kl_divergence
from rljob_runtime.samples.sample import SampleBatch


def kl_penalty(samples: SampleBatch, params: PolicyParams) -> Tensor:
    """β·KL of each response token [T] of the policy that drew it; zeros unless klIn is `reward`."""
    if params.kl_coefficient == 0 or params.kl_in != "reward":
        return torch.zeros(samples.num_tokens)
    drawn = "old_logprobs" if "old_logprobs" in samples.fields else "rollout_logprobs"
    reference_T = samples.packed("reference_logprobs")
    kl_T = kl_divergence(samples.packed(drawn), reference_T, params.kl_estimator)
    return params.kl_coefficient * kl_T


def rewards_less_kl(samples: SampleBatch, params: PolicyParams) -> Tensor:
    """R − β·Σ KL of each sample, [B]: what advantages of whole responses are made of."""
    rewards_B = samples.scalars["reward"]
    penalty_T = kl_penalty(samples, params).to(rewards_B.dtype)
    return rewards_B.index_add(0, samples.sample_of_T(), penalty_T, alpha=-1)


def overlong_penalty(lengths_B: Tensor, overlong: Overlong) -> Tensor:
    """What each response's length costs, [B] ≥ 0 (DAPO, arXiv:2503.14476, eq. 13, times the penalty).

    Nothing up to max_length − buffer_tokens, then linearly more, and the whole penalty from max_length on.
    """
    assert overlong.max_length is not None, "resolve() fills overlong.maxLength"
    over_B = lengths_B - (overlong.max_length - overlong.buffer_tokens)
    return overlong.penalty * (over_B / overlong.buffer_tokens).clamp(0, 1)
