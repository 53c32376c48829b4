"""PF-PPO's filter (arXiv:2409.06957, §3): of each prompt's samples, some are trained on, by their rank.

Called between advantages, which are made of all samples, and the loss; any algorithm can use it.
"""

# N samples of one prompt, ranked by reward

import torch
from torch import Tensor

from rljob_api.spec.algorithms.sampling import SampleFilter
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed


def filtered(samples: SampleBatch, chosen: SampleFilter, *, seed: int) -> SampleBatch:
    """`keep` samples of each group, drawn with replacement; one that is drawn twice counts twice.

    seed: of the optimizer step. A group's draw depends on it and the group's prompt alone, not on how
    groups are shared out.
    """
    taken: list[int] = []
    for group, prompt in enumerate(samples.prompts):
        members = (samples.group_of_B == group).nonzero()[:, 0]
        if not len(members):
            continue
        weights_N = sample_weights(samples.scalars["reward"][members], chosen.strategy)
        random = torch.Generator().manual_seed(derive_seed(seed, "filter", *prompt.tolist()))
        drawn = torch.multinomial(weights_N, chosen.keep, replacement=True, generator=random)
        taken += sorted(members[drawn].tolist())
    return samples.keep(taken)


def sample_weights(rewards_N: Tensor, strategy: str) -> Tensor:
    """Probability of each sample, float64 [N]; samples of equal reward share that of their ranks."""
    weights_N = rank_weights(len(rewards_N), strategy)[_ranks(rewards_N)]
    for reward in set(rewards_N.tolist()):
        equal = rewards_N == reward
        weights_N[equal] = weights_N[equal].mean()
    return weights_N


def rank_weights(num_samples: int, strategy: str) -> Tensor:
    """Probability of each rank, the best first: best-of-n takes it alone; best-random gives it one half and
    the others the rest; best-worst one half to it and one half to the last."""
    weights_N = torch.zeros(num_samples, dtype=torch.float64)
    if strategy == "best-random" and num_samples > 1:
        weights_N[:] = 0.5 / (num_samples - 1)
    weights_N[0] = 1.0 if strategy == "best-of-n" or num_samples == 1 else 0.5
    if strategy == "best-worst" and num_samples > 1:
        weights_N[-1] = 0.5
    return weights_N


def _ranks(rewards_N: Tensor) -> Tensor:
    """Place of each sample when they are in falling order of reward, from 0."""
    return rewards_N.argsort(descending=True, stable=True).argsort()
