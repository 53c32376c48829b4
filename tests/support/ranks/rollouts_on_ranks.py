"""A rollout engine on forked ranks: what each rank generates, of its model's share of the groups."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from forked_ranks import on_ranks
from rollouts import run

from rljob_api.topology.devices import RolloutDegrees
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.rollout_grid import RolloutGrid
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.rollout_torch import TorchRollout

ARGUMENTS: dict[str, Any] = {"dtype": torch.float32, "max_sequences": 6, "max_length": 64}


def grid_of(**degrees: int) -> RolloutGrid:
    """The rollout layout of these degrees; the others are 1."""
    return RolloutGrid(RolloutDegrees.model_validate({"data": 1, **degrees}))


def engine_on_rank(path: Path, grid: RolloutGrid, **changes: Any) -> TorchRollout:
    """This rank's engine."""
    groups = RolloutGroups(grid, timeout_seconds=60)
    return TorchRollout(path, groups=groups, **(ARGUMENTS | changes))


def shares(groups: Sequence[PromptGroup], grid: RolloutGrid, rank: int) -> list[PromptGroup]:
    """The groups of a rank's model: every so many-th one."""
    data = grid.degrees.data or 1
    model = rank // (grid.size // data)
    return list(groups[model::data])


def run_on_ranks(
    path: Path,
    grid: RolloutGrid,
    groups: Sequence[PromptGroup],
    how: Sequence[Sampling],
    **changes: Any,
) -> list[list[dict[str, Generated]]]:
    """By way of sampling and by model, what its ranks generate, which all of them must have alike."""

    def generate(rank: int) -> list[dict[str, Generated]]:
        engine = engine_on_rank(path, grid, **changes)
        own = shares(groups, grid, rank)
        return [run(engine, own, sampling) for sampling in how]

    by_rank = on_ranks(grid.size, generate, seconds=300)
    each = grid.size // (grid.degrees.data or 1)
    for rank, found in enumerate(by_rank):
        assert found == by_rank[rank // each * each], (
            f"rank {rank} has other samples than its model"
        )
    return [[found[number] for found in by_rank[::each]] for number in range(len(how))]
