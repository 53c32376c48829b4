"""Implement REINFORCE++ (arXiv:2501.03262): a token's discounted return, with the step's whitening as
baseline."""

# T response tokens of all samples together

import torch
from torch import Tensor

from rljob_api.spec.algorithms.reinforce_plus_plus import ReinforcePlusPlusParams
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import kl_penalty
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: ReinforcePlusPlusParams) -> None:
    """Add the field `advantages`: Σ_{s≥t} γ^{s−t}·r_s, not yet whitened; r is −β·KL, plus R at the
    end."""
    penalties = samples.split_by_sample(kl_penalty(samples, params))
    samples.fields["advantages"] = [
        returns(float(reward), penalty_T, params.discount)
        for reward, penalty_T in zip(samples.scalars["reward"], penalties, strict=True)
    ]


def returns(reward: float, penalty_T: Tensor, discount: float) -> Tensor:
    """Return the discounted sum of rewards from each of one response's tokens on, float32 [T]."""
    rewards_T = -penalty_T.double()
    if len(rewards_T):
        rewards_T[-1] += reward
    if discount == 1:
        return rewards_T.flip(0).cumsum(0).flip(0).float()
    following, returns_backwards = 0.0, []
    for reward_t in reversed(rewards_T.tolist()):
        following = reward_t + discount * following
        returns_backwards.append(following)
    return torch.tensor(returns_backwards[::-1], dtype=torch.float32)
