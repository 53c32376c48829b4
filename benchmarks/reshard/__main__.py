"""Resharding: how fast weights get from one layout to another, what hides behind what, and memory.

Emulated devices on this machine, a thread each, bfloat16. *Speed*: two ranks, tensor 2 to data 2, where
every rank gathers what the other has; the ways take turns. *Overlap*: side streams are made slow by sleep,
as a copy engine takes no processor. *Memory*: bytes in the ledger, over time and by layout pair. *By plan*:
the paper's models, which no machine here holds. *KV cache*: generation under a device limit. *Run*: what of a
step it is. *vLLM*: weights from memory beside the disk.
"""

import argparse
import statistics
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.reshard.engines import measure_cache, measure_vllm
from benchmarks.reshard.memory import measure_peaks, table_of_pairs
from benchmarks.reshard.paper import paper_rows, paper_table
from benchmarks.reshard.sides import (
    Hidden,
    Reshard,
    Way,
    bare_gather,
    bare_sends,
    dense,
    hidden_prefetch,
    hidden_swaps,
    memcpy,
    plain_load,
    plan_of,
    turns,
)
from benchmarks.reshard.step import measure_step
from benchmarks.support.figures import Figures
from benchmarks.support.ranks import on_ranks
from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import GB
from rljob_plan.resharding.figures import count_bytes
from rljob_runtime.devices.cpu import CpuBackend

MIB = 2**20
GATHER, SWAP = 0.010, 0.008
"""Seconds that a bucket takes more where streams are slow."""


def measure_speed(shape: Shape, figures: Figures, *, repetitions: int) -> None:
    """Ours over memory and over gloo, bare gathers, a plain script, and memcpy.

    torch's all-gather over gloo makes a whole new buffer and copies out of it, in every call; by a send and a
    receive it needs none. The faster of both is what ours is compared with.
    """
    apart = plan_of(shape, {"data": 1, "tensor": 2}, {"data": 2})
    here = plan_of(shape, {"data": 2}, {"data": 1, "tensor": 2})
    same = plan_of(shape, {"data": 1, "tensor": 2}, {"data": 1, "tensor": 2})

    def rank_turns(rank: int) -> list[tuple[str, float]]:
        backend = CpuBackend(name=f"emulated:{rank}")
        ours = Reshard(apart, rank, shares_memory=True, backend=backend)
        ways: dict[str, Way] = {
            "memory": ours,
            "gloo": Reshard(apart, rank, shares_memory=False, backend=backend),
            "all-gather": bare_gather(apart, rank),
            "sends": bare_sends(apart, rank),
            "plain": plain_load(apart, rank),
            "select": Reshard(here, rank, shares_memory=True, backend=backend),
            "copy": Reshard(same, rank, shares_memory=True, backend=backend),
            "memcpy": memcpy(same, rank),
        }
        found = list(turns(ways, repetitions))
        ours.check()
        return found

    seconds = slowest(on_ranks(2, rank_turns))
    received = count_bytes(apart).received
    figures.add("gathered by a rank", received / MIB, "MiB")
    ways = {
        "all-gather": "bare all-gather over gloo",
        "sends": "the same by send and receive",
        "gloo": "reshard over gloo",
        "memory": "reshard over shared memory",
    }
    for way, name in ways.items():
        figures.add(name, received / seconds[way] / GB, "GiB/s")
    bare = min(seconds["all-gather"], seconds["sends"])
    figures.add("over gloo, of the faster of both", 100 * bare / seconds["gloo"], "%", least=80)
    figures.add("over memory, of it", 100 * bare / seconds["memory"], "%", least=100)
    figures.add("faster than a plain script", seconds["plain"] / seconds["memory"], "×", least=3)
    figures.add("over gloo, faster than it", seconds["plain"] / seconds["gloo"], "×")
    selected = 100 * seconds["memcpy"] / seconds["select"]
    figures.add("selection and copy, of memcpy", selected, "%", least=60)
    figures.add("copy of whole slices, of memcpy", 100 * seconds["memcpy"] / seconds["copy"], "%")


def slowest(ranks: list[list[tuple[str, float]]]) -> dict[str, float]:
    """Median of each way's turns, each as long as its slowest rank."""
    found: dict[str, list[float]] = defaultdict(list)
    for turn in zip(*ranks, strict=True):
        found[turn[0][0]].append(max(seconds for _, seconds in turn))
    return {name: statistics.median(values) for name, values in found.items()}


def measure_overlap(shape: Shape, figures: Figures) -> None:
    """With slow side streams."""
    plan = plan_of(shape, {"data": 1, "tensor": 2}, {"data": 2})
    copies = SWAP * len(plan.buckets)

    def rank_hides(rank: int) -> tuple[Hidden, Hidden]:
        swaps = hidden_swaps(plan, rank, gather=GATHER, swap=SWAP)
        return swaps, hidden_prefetch(plan, rank, copies=copies)

    swaps, prefetches = zip(*on_ranks(2, rank_hides), strict=True)
    figures.add("swap to the host, hidden", 100 * min(one.share for one in swaps), "%")
    figures.add("prefetch from the host, hidden", 100 * min(one.share for one in prefetches), "%")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, few turns")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    quick, figures = arguments.quick, Figures()
    large = dense(1024, 4, 8192) if quick else dense(1024, 16, 16384)
    measure_speed(large, figures, repetitions=3 if quick else 9)
    measure_overlap(large, figures)
    traces = measure_peaks(large, figures)
    pairs = table_of_pairs(64 if quick else 128, figures)
    paper = paper_rows()
    print(paper_table(paper), end="", flush=True)
    size = "0.8M" if quick else "24.7M"
    measure_cache(size, figures, repetitions=1 if quick else 3)
    if find_spec("vllm") is not None:
        measure_vllm(size, figures, repetitions=2 if quick else 5)  # no fork after it: threads
    else:
        print("vLLM is not installed: its weights are not measured")
    measure_step(size, figures, steps=3 if quick else 8)
    if arguments.json:
        figures.write(
            arguments.json,
            packages=["rljob", "torch"],
            facts={"threads a rank": 1},
            pairs=pairs,
            paper=paper,
            traces=traces,
        )


if __name__ == "__main__":
    main()
