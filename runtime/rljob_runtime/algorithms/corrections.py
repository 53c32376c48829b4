"""Correct for tokens that were drawn by another policy than the one being trained. Any algorithm can use
it.

There are three policies. The one that drew a token, as reported by the rollout engine, is the behaviour
policy. The one that the update began with, as computed by the update engine, is the proximal policy. The
one being trained is the target. The surrogate's ratio is target/proximal and the weights here are
proximal/behaviour: together this is decoupled PPO (arXiv:2110.00641, eq. 8).
"""

# B samples, T response tokens of all samples together

import math

import torch
from torch import Tensor

from rljob_api.spec.algorithms.policy_params import RolloutCorrection
from rljob_runtime.algorithms.functional import LOG_RATIO_LIMIT, mean_over_sequence


def correction(
    update_T: Tensor,
    rollout_T: Tensor,
    sample_of_T: Tensor,
    chosen: RolloutCorrection,
    *,
    older: bool,
) -> Tensor | None:
    """Return the factor of each token's loss [T], without gradient, or None if nothing is corrected.

    update_T, rollout_T: natural log of both policies; they contain all tokens of each sequence. older:
    whether older weights may have drawn the tokens. Every mask excludes a token whose ratio is not a
    number, for example one to which the rollout assigned probability 0.
    """
    weight = chosen.weight if chosen.weight != "auto" else "token" if older else "none"
    log_ratio_T = (update_T - rollout_T).detach()
    factor_T: Tensor | None = None
    if weight != "none":
        log_T = log_ratio_T if weight == "token" else _over_sequence(log_ratio_T, sample_of_T)
        factor_T = log_T.clamp(-LOG_RATIO_LIMIT, math.log(chosen.cap)).exp()
    if chosen.mask != "none":
        unmasked_T = unmasked(log_ratio_T, sample_of_T, chosen)
        factor_T = (
            unmasked_T.to(log_ratio_T.dtype)
            if factor_T is None
            else factor_T.where(unmasked_T, 0.0)
        )
    return factor_T


def unmasked(log_ratio_T: Tensor, sample_of_T: Tensor, chosen: RolloutCorrection) -> Tensor:
    """Return which tokens the mask keeps, bool [T]."""
    log_T = log_ratio_T
    if chosen.mask != "token":
        log_T = _over_sequence(log_ratio_T, sample_of_T, mean=chosen.mask == "geometric")
    ratio_T = log_T.double().exp()
    return (ratio_T >= chosen.mask_low) & (ratio_T <= chosen.mask_high)


def _over_sequence(values_T: Tensor, sample_of_T: Tensor, *, mean: bool = False) -> Tensor:
    """Return for each token the sum, or mean, over its sample's tokens."""
    mean_T = mean_over_sequence(values_T, sample_of_T)
    return mean_T if mean else mean_T * torch.bincount(sample_of_T)[sample_of_T]
