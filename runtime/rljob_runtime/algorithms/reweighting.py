"""Resample the step's samples by their rewards: verl's variant of PF-PPO (the paper's filter is
`filtering`).

Called once a step, after advantages were computed and whitened. Any algorithm can use it.
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


def reweight_samples(
    groups: Sequence[SampleBatch],
    chosen: BatchReweighting,
    *,
    seed: int,
    share: tuple[int, int],
    add_up: Callable[[Tensor], None],
) -> list[SampleBatch]:
    """Return these groups with the drawn samples. A sample drawn twice occurs twice; groups may become
    empty.

    share: (this rank's number, number of ranks). add_up: sums a tensor over these ranks, in place. It is
    called for 8 bytes a rank, and twice for 8 bytes a sample. seed: that of the optimizer step. The draw
    does not depend on how samples are distributed or ordered.
    """
    local_rewards = torch.cat([group.scalars["reward"].double() for group in groups])
    local_keys = torch.tensor([key for group in groups for key in _keys(group)])
    rank, ranks = share
    counts = torch.zeros(ranks, dtype=torch.int64)
    counts[rank] = len(local_keys)
    add_up(counts)
    end = int(counts[: rank + 1].sum())
    local = slice(end - len(local_keys), end)
    rewards_B = torch.zeros(int(counts.sum()), dtype=torch.float64)
    keys_B = torch.zeros(len(rewards_B), dtype=torch.int64)
    rewards_B[local], keys_B[local] = local_rewards, local_keys
    add_up(rewards_B)
    add_up(keys_B)
    order_B = keys_B.argsort(stable=True)
    generator = torch.Generator().manual_seed(derive_seed(seed, "reweight"))
    weights_B = reward_weights(rewards_B[order_B], chosen)
    drawn_B = torch.multinomial(weights_B, len(weights_B), replacement=True, generator=generator)
    times_B = torch.bincount(order_B[drawn_B], minlength=len(weights_B))
    times_by_group = torch.split(times_B[local], [group.num_samples for group in groups])
    return [
        group.select(torch.arange(group.num_samples).repeat_interleave(times).tolist())
        for group, times in zip(groups, times_by_group, strict=True)
    ]


def reward_weights(rewards_B: Tensor, chosen: BatchReweighting) -> Tensor:
    """Return the weight of each sample, float64 [B], not normalised."""
    if chosen.weights == "power":
        weights_B = rewards_B.abs() ** chosen.power
    elif chosen.weights == "max-min":
        weights_B = ((rewards_B == rewards_B.max()) | (rewards_B == rewards_B.min())).double()
    else:
        weights_B = torch.full_like(rewards_B, 0.1).where(rewards_B != rewards_B.max(), 0.4)
    return weights_B + SMALLEST


def _keys(group: SampleBatch) -> list[int]:
    """Return a number for each sample that depends only on its prompt and response."""
    prompts = [prompt.tolist() for prompt in group.prompts]
    return [
        derive_seed(0, *prompts[number], "response", *response.tolist())
        for number, response in zip(group.group_of_B.tolist(), group.responses, strict=True)
    ]
