"""Ranks of a benchmark: forks that meet over gloo on this machine, a thread each."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Found = TypeVar("Found")
FORK = multiprocessing.get_context("fork")
DEADLINE_SECONDS = 600


def on_ranks(size: int, function: Callable[[int], Found]) -> list[Found]:
    """What function(rank) returns, by rank; it comes back by pickle. Raises RuntimeError when a rank fails,
    and after DEADLINE_SECONDS."""
    with tempfile.TemporaryDirectory() as meeting:
        pipes, ranks = [], []
        for rank in range(size):
            pipe, theirs = FORK.Pipe(duplex=False)
            arguments = (rank, size, function, f"{meeting}/store", theirs)
            ranks.append(FORK.Process(target=_live, args=arguments, daemon=True))
            ranks[-1].start()
            theirs.close()
            pipes.append(pipe)
        try:
            return [_heard(rank, pipe) for rank, pipe in enumerate(pipes)]
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _heard(rank: int, pipe: Connection) -> Any:
    if not pipe.poll(DEADLINE_SECONDS):
        raise RuntimeError(f"rank {rank} has no result after {DEADLINE_SECONDS} s")
    done, found = pipe.recv()
    if not done:
        raise RuntimeError(f"rank {rank}: {found}")
    return found


def _live(
    rank: int, size: int, function: Callable[[int], Any], store: str, pipe: Connection
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=DEADLINE_SECONDS)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit
        )
        pipe.send((True, function(rank)))
        dist.barrier()  # no rank leaves while another still talks to it
    except BaseException:
        pipe.send((False, traceback.format_exc()))
