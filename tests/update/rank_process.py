"""One update rank as a process: trains on the batches that `test_processes` left in a folder."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from rljob_api.algorithms.grpo import GRPOParams
from rljob_api.engines import Optimizer
from rljob_runtime.algorithms import ALGORITHMS
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.engines.update_torch import UpdateEngine


def loss(logprobs_T, batch, totals):
    return ALGORITHMS["grpo"].loss(logprobs_T, batch, GRPOParams(), totals)


def train(rank: int, folder: Path) -> None:
    """Nothing that holds the group is left at the end."""
    work = torch.load(folder / "work.pt", weights_only=False)
    engine = UpdateEngine(
        work["model"],
        optimizer=Optimizer.model_validate(work["optimizer"]),
        total_steps=10,
        temperature=1.0,
        ranks=UpdateRanks(everyone=dist.group.WORLD),
    )
    for shares in work["steps"]:
        engine.train([shares[rank]], loss, groups_with_signal=1)
    torch.save(dict(engine.weights()), folder / f"weights-{rank}.pt")


if __name__ == "__main__":
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    train(rank, folder)
    dist.destroy_process_group()
