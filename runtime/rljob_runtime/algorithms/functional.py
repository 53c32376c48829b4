"""Implement advantages, surrogates, KL estimators and aggregations as pure functions on packed tokens.

Called by the algorithms. Nothing here is padded or masked: a tensor `_T` holds the response tokens of all
samples one after the other, and divisors are always counts over the global batch.
"""

# B samples, T response tokens of all samples together, G groups

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
KlEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """The loss of each token. losses_T: to be minimised, with gradient. ratio_T, clipped_T (bool):
    without gradient."""

    losses_T: Tensor
    ratio_T: Tensor
    clipped_T: Tensor


def group_advantages(
    rewards_B: Tensor, group_of_B: Tensor, *, scale: bool, epsilon: float = 1e-6
) -> Tensor:
    """Compute rewards relative to their group, float32 [B] (GRPO, arXiv:2402.03300, §4.1.2).

    (R − mean) / (std + epsilon) with the unbiased std; with scale=False only R − mean (Dr.GRPO,
    arXiv:2503.20783). A group of one keeps its reward. A group whose rewards are all equal gets exact
    zeros: rounding of its mean, divided by epsilon, would create a false signal.
    """
    rewards_B = rewards_B.double()
    group_B, sizes_G = _count_groups(group_of_B)
    zeros_G = torch.zeros_like(sizes_G, dtype=rewards_B.dtype)
    mean_G = zeros_G.index_add(0, group_B, rewards_B) / sizes_G
    centred_B = rewards_B - mean_G[group_B]
    square_G = zeros_G.index_add(0, group_B, centred_B.square())
    std_G = (square_G / (sizes_G - 1).clamp(min=1)).sqrt()
    advantages_B = centred_B / (std_G[group_B] + epsilon) if scale else centred_B
    advantages_B = advantages_B.where(_has_signal(rewards_B, group_B, sizes_G)[group_B], 0.0)
    return advantages_B.where(sizes_G[group_B] > 1, rewards_B).float()


def groups_with_signal(rewards_B: Tensor, group_of_B: Tensor) -> int:
    """Count the groups whose advantages are not all zero: those whose rewards differ.

    A group of one has a signal if its reward is not 0.
    """
    group_B, sizes_G = _count_groups(group_of_B)
    differ_G = _has_signal(rewards_B, group_B, sizes_G)
    reward_G = torch.zeros_like(sizes_G, dtype=rewards_B.dtype).index_add(0, group_B, rewards_B)
    return int(differ_G.where(sizes_G > 1, reward_G != 0).sum())


def in_group_with_signal(rewards_B: Tensor, group_of_B: Tensor) -> Tensor:
    """Return for each sample whether the rewards of its group differ, bool [B]."""
    group_B, sizes_G = _count_groups(group_of_B)
    return _has_signal(rewards_B, group_B, sizes_G)[group_B]


def clipped_surrogate(
    logprobs_T: Tensor,
    old_logprobs_T: Tensor,
    advantages_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """Compute −min(r·A, clip(r, 1−low, 1+high)·A) per token (PPO, arXiv:1707.06347, eq. 7).

    r = exp(logprobs − old_logprobs), the exponent limited to ±20. Different bounds are DAPO's clip-higher
    (arXiv:2503.14476). A token counts as clipped if the clip made its loss larger.
    """
    ratio_T = limited_ratio(logprobs_T, old_logprobs_T)
    unclipped_loss_T = -ratio_T * advantages_T
    clipped_loss_T = -ratio_T.clamp(1 - clip_low, 1 + clip_high) * advantages_T
    return Surrogate(
        losses_T=torch.maximum(unclipped_loss_T, clipped_loss_T),
        ratio_T=ratio_T.detach(),
        clipped_T=(clipped_loss_T > unclipped_loss_T).detach(),
    )


def limited_ratio(logprobs_T: Tensor, old_logprobs_T: Tensor) -> Tensor:
    """Compute exp(logprobs − old_logprobs), with gradient; the exponent is limited to ±20."""
    return (logprobs_T - old_logprobs_T).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def kl_divergence(
    logprobs_T: Tensor, reference_logprobs_T: Tensor, estimator: KlEstimator
) -> Tensor:
    """Estimate KL(policy ‖ reference) per token that the policy drew, by one of Schulman's estimators.

    With d = reference − policy: k1 = −d; k2 = d²/2; k3 = exp(d) − d − 1, where d is limited to ±20. verl
    also limits k3 itself to ±10; that stops the pull towards the reference exactly where it is strongest,
    and is omitted here. As a loss, only k2 has the gradient of the true KL on policy; the gradient of k1
    is zero on average.
    """
    difference_T = reference_logprobs_T - logprobs_T
    if estimator == "k1":
        return -difference_T
    if estimator == "k2":
        return difference_T.square() / 2
    difference_T = difference_T.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(difference_T) - difference_T


def token_mean(values_T: Tensor, *, num_tokens: int) -> Tensor:
    """Return this micro-batch's share of the mean over the global batch's `num_tokens` response
    tokens."""
    return values_T.sum() / max(num_tokens, 1)


def sequence_mean(values_T: Tensor, sample_of_T: Tensor, *, num_sequences: int) -> Tensor:
    """Return this micro-batch's share of the mean over sequences of their token means.

    num_sequences: sequences of the global batch with at least one token. A sequence is never split.
    """
    lengths_B = torch.bincount(sample_of_T)
    return (values_T / lengths_B[sample_of_T]).sum() / max(num_sequences, 1)


def mean_over_sequence(values_T: Tensor, sample_of_T: Tensor) -> Tensor:
    """Return for each token the mean over its sample's tokens, [T]."""
    lengths_B = torch.bincount(sample_of_T)
    sums_B = values_T.new_zeros(len(lengths_B)).index_add(0, sample_of_T, values_T)
    return (sums_B / lengths_B.clamp(min=1))[sample_of_T]


def group_sizes(group_of_B: Tensor) -> Tensor:
    """Return the number of samples in each sample's group, int64 [B]."""
    group_B, sizes_G = _count_groups(group_of_B)
    return sizes_G[group_B]


def _count_groups(group_of_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's group, numbered from 0, int64 [B], and the groups' sizes, int64 [G]."""
    _, group_B = torch.unique(group_of_B, return_inverse=True)
    return group_B, torch.bincount(group_B)


def _has_signal(rewards_B: Tensor, group_B: Tensor, sizes_G: Tensor) -> Tensor:
    """Return whether each group's rewards differ, bool [G]; group_B counts from 0."""
    empty_G = torch.zeros_like(sizes_G, dtype=rewards_B.dtype)
    highest_G = empty_G.scatter_reduce(0, group_B, rewards_B, "amax", include_self=False)
    lowest_G = empty_G.scatter_reduce(0, group_B, rewards_B, "amin", include_self=False)
    return highest_G != lowest_G
