"""Optimizer steps of the update engine on ranks that share a model, and on one, for comparison."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from parallel_training import SETTINGS, grpo, make_batch

from rljob_api.spec.lora import Lora
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_torch import TorchUpdateEngine
from rljob_runtime.weights.held_policy import LocalPolicy, load_local_policy

STEPS = 4


def ranks_of(grid: RankGrid) -> UpdateRanks:
    return UpdateRanks.of(ProcessGroups(grid, timeout_seconds=60), dist.group.WORLD)


def make_engine(
    path: Path,
    ranks: UpdateRanks,
    *,
    dtype: torch.dtype = torch.float32,
    swap: HostSwap | None = None,
    lora: Lora | None = None,
    ledger: MemoryLedger | None = None,
    **settings: Any,
) -> tuple[TorchUpdateEngine, LocalPolicy]:
    policy = load_local_policy(path, ranks, dtype=dtype, lora=lora)
    engine = TorchUpdateEngine(
        policy.model,
        optimizer=SETTINGS.model_copy(update=settings),
        total_steps=STEPS,
        temperature=0.8,
        ranks=ranks,
        purposes=policy.purposes,
        swap=swap,
        ledger=ledger,
    )
    return engine, policy


def train(engine: TorchUpdateEngine, ranks: UpdateRanks, steps: range) -> list[dict[str, float]]:
    """Each step has two micro-batches, of which replicas take every so many."""
    replica, replicas = ranks.share
    found = []
    for step in steps:
        batches = [make_batch(2 * step), make_batch(2 * step + 1)]
        own = batches[replica::replicas]
        found.append(engine.train(own, grpo, groups_with_signal=len(own)))
    return found


def whole(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in policy.full_weights()}
