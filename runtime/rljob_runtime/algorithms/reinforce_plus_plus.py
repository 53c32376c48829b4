"""REINFORCE++ (arXiv:2501.03262): a token's discounted return; the step's whitening is its baseline."""

# T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.spec.algorithms.reinforce_plus_plus import ReinforcePlusPlusParams
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import kl_penalty
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: ReinforcePlusPlusParams) -> None:
    """Add the field `advantages`: Σ_{s≥t} γ^{s−t}·r_s, not yet whitened; r is −β·KL, with R at the end."""
    penalties = samples.split_by_sample(kl_penalty(samples, params))
    samples.fields["advantages"] = [
        returns(float(reward), penalty_T, params.discount)
        for reward, penalty_T in zip(samples.scalars["reward"], penalties, strict=True)
    ]


def returns(reward: float, penalty_T: Tensor, discount: float) -> Tensor:
    """Discounted sum of what follows each of one response's tokens, float32 [T]."""
    rewards_T = -penalty_T.double()
    if len(rewards_T):
        rewards_T[-1] += reward
    if discount == 1:
        return rewards_T.flip(0).cumsum(0).flip(0).float()
    later, found = 0.0, []
    for now in reversed(rewards_T.tolist()):
        later = now + discount * later
        found.append(later)
    return torch.tensor(found[::-1], dtype=torch.float32)
