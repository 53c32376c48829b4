"""Implement PF-PPO's filter (arXiv:2409.06957, §3): train on some of each prompt's samples, chosen by
reward rank.

Called after the advantages, which use all samples, and before the loss. Any algorithm can use it.
"""

# N samples of one prompt, ranked by reward

import torch
from torch import Tensor

from rljob_api.spec.algorithms.sampling import SampleFilter
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed


def filter_samples(samples: SampleBatch, chosen: SampleFilter, *, seed: int) -> SampleBatch:
    """Draw `keep` samples of each group with replacement; a sample that is drawn twice counts twice.

    seed: that of the optimizer step. A group's draw depends only on the seed and the group's prompt, not
    on how groups are distributed.
    """
    selected: list[int] = []
    for group, prompt in enumerate(samples.prompts):
        members = (samples.group_of_B == group).nonzero()[:, 0]
        if not len(members):
            continue
        weights_N = sample_weights(samples.scalars["reward"][members], chosen.strategy)
        generator = torch.Generator().manual_seed(derive_seed(seed, "filter", *prompt.tolist()))
        drawn = torch.multinomial(weights_N, chosen.keep, replacement=True, generator=generator)
        selected += sorted(members[drawn].tolist())
    return samples.keep(selected)


def sample_weights(rewards_N: Tensor, strategy: str) -> Tensor:
    """Return the probability of each sample, float64 [N]; samples of equal reward share that of their
    ranks."""
    weights_N = rank_weights(len(rewards_N), strategy)[_ranks(rewards_N)]
    for reward in set(rewards_N.tolist()):
        equal = rewards_N == reward
        weights_N[equal] = weights_N[equal].mean()
    return weights_N


def rank_weights(num_samples: int, strategy: str) -> Tensor:
    """Return the probability of each rank, the best first.

    best-of-n gives the best rank everything. best-random gives it one half, and the others share the
    rest. best-worst gives one half to it and one half to the last rank.
    """
    weights_N = torch.zeros(num_samples, dtype=torch.float64)
    if strategy == "best-random" and num_samples > 1:
        weights_N[:] = 0.5 / (num_samples - 1)
    weights_N[0] = 1.0 if strategy == "best-of-n" or num_samples == 1 else 0.5
    if strategy == "best-worst" and num_samples > 1:
        weights_N[-1] = 0.5
    return weights_N


def _ranks(rewards_N: Tensor) -> Tensor:
    """Return the rank of each sample by falling reward, from 0."""
    return rewards_N.argsort(descending=True, stable=True).argsort()
