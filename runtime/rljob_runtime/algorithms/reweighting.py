"""The step's samples drawn anew by their rewards: what verl calls PF-PPO (the paper's filter is `filtering`).

Called once a step, after advantages were made and whitened; any algorithm can use it.
"""

# B samples of the global batch

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rljob_api.spec.algorithms.sampling import BatchReweighting
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed

SMALLEST = 1e-8
"""Added to each weight, so that a batch without rewards is drawn evenly."""


def reweighted(
    groups: Sequence[SampleBatch],
    chosen: BatchReweighting,
    *,
    seed: int,
    share: tuple[int, int],
    add_up: Callable[[Tensor], None],
) -> list[SampleBatch]:
    """These groups with the samples that were drawn, one that was drawn twice there twice; groups may end up
    without any.

    share: (this rank's number, number of ranks). add_up: sums a tensor over these ranks, in place; called for
    8 bytes a rank, and twice for 8 bytes a sample. seed: of the optimizer step. What is drawn does not depend
    on how samples are shared out or ordered.
    """
    own_rewards = torch.cat([group.scalars["reward"].double() for group in groups])
    own_keys = torch.tensor([key for group in groups for key in _keys(group)])
    rank, ranks = share
    counts = torch.zeros(ranks, dtype=torch.int64)
    counts[rank] = len(own_keys)
    add_up(counts)
    end = int(counts[: rank + 1].sum())
    own = slice(end - len(own_keys), end)
    rewards_B = torch.zeros(int(counts.sum()), dtype=torch.float64)
    keys_B = torch.zeros(len(rewards_B), dtype=torch.int64)
    rewards_B[own], keys_B[own] = own_rewards, own_keys
    add_up(rewards_B)
    add_up(keys_B)
    order_B = keys_B.argsort(stable=True)
    random = torch.Generator().manual_seed(derive_seed(seed, "reweight"))
    weights_B = reward_weights(rewards_B[order_B], chosen)
    drawn_B = torch.multinomial(weights_B, len(weights_B), replacement=True, generator=random)
    times_B = torch.bincount(order_B[drawn_B], minlength=len(weights_B))
    parts = torch.split(times_B[own], [group.num_samples for group in groups])
    return [
        group.select(torch.arange(group.num_samples).repeat_interleave(times).tolist())
        for group, times in zip(groups, parts, strict=True)
    ]


def reward_weights(rewards_B: Tensor, chosen: BatchReweighting) -> Tensor:
    """Weight of each sample, float64 [B], not normalised."""
    if chosen.weights == "power":
        weights_B = rewards_B.abs() ** chosen.power
    elif chosen.weights == "max-min":
        weights_B = ((rewards_B == rewards_B.max()) | (rewards_B == rewards_B.min())).double()
    else:
        weights_B = torch.full_like(rewards_B, 0.1).where(rewards_B != rewards_B.max(), 0.4)
    return weights_B + SMALLEST


def _keys(group: SampleBatch) -> list[int]:
    """A number of each sample that follows from what it says alone."""
    prompts = [prompt.tolist() for prompt in group.prompts]
    return [
        derive_seed(0, *prompts[number], "response", *response.tolist())
        for number, response in zip(group.group_of_B.tolist(), group.responses, strict=True)
    ]
