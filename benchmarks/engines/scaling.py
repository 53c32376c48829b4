"""Strong scaling of a training step from one rank to two, a thread each, and what of it is waiting.

The parallel decoder and its optimizer over gloo on this machine, on a fixed batch of groups of 8 samples
that share a prompt: tensor, context and data parallelism (ZeRO 0 and 1), each beside the same step on one
rank, with the same loss. The layouts take turns; every turn forks its ranks anew. A rank waits while a
collective that it needs is not done: for bytes, and for the other rank to come. Planned bytes are those
of `rljob plan`.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engines.update import MOST_APART, SETTINGS, weighted, works
from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES, make_model
from rljob_api.model.architecture import Shape, read_shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.traffic import UpdateWork as PlannedWork
from rljob_plan.update_traffic import stage_traffic
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.devices import wire
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.config import read_config
from rljob_runtime.parallel.decoder.parameters import purposes
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer

FORK = multiprocessing.get_context("fork")
DEADLINE_SECONDS = 600
LAYOUTS: dict[str, tuple[dict[str, int], float | None]] = {
    "1 rank": ({}, None),
    "data 2": ({"data": 2}, 1.6),
    "data 2, ZeRO 1": ({"data": 2, "zero": 1}, 1.6),
    "tensor 2": ({"tensor": 2}, 1.3),
    "context 2": ({"context": 2}, 1.3),
}
"""Degrees, and the least speed-up that is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A rank's median step. waiting: seconds of it. kept: bytes of weights, gradients and moments. loss: this
    rank's part of the last step's."""

    seconds: float
    waiting: float
    kept: int
    loss: float


def shape_of(path: Path) -> Shape:
    """Of a saved model."""
    shape = read_shape(read_config(path), name=f"{path}/config.json")
    assert shape is not None, f"{path} has a known shape"
    return shape


@contextmanager
def timed_waits() -> Iterator[list[float]]:
    """Seconds of every wait of this process for a collective."""
    found: list[float] = []
    wait, all_reduce = wire.Pending.wait, dist.all_reduce

    def timed(call: Any) -> Any:
        def timed_call(*arguments: Any, **more: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments, **more)
            finally:
                found.append(time.perf_counter() - started)

        return timed_call

    changed: Any = wire.Pending
    changed.wait, dist.all_reduce = timed(wait), timed(all_reduce)
    try:
        yield found
    finally:
        changed.wait, dist.all_reduce = wait, all_reduce


def train(grid: RankGrid, path: Path, batch: SampleBatch, steps: int) -> Measured:
    """Steps of this rank, after one that warms up."""
    groups, ledger = ProcessGroups(grid, timeout_seconds=60), MemoryLedger(device="unlimited")
    model = load_parallel(path, groups, dtype=torch.float32)
    parameters, of = dict(model.trained_parameters()), purposes(model, shape_of(path))
    everyone = dist.group.WORLD if grid.size > 1 else None
    optimizer = ParallelOptimizer(
        parameters, of, SETTINGS, groups=groups, everyone=everyone, ledger=ledger
    )
    data, ranks = grid.coordinates(groups.rank).data, grid.degrees.data
    own = SampleBatch.join(batch.by_group()[data::ranks])
    undivided = Totals(num_tokens=1, num_sequences=1)
    seconds, waiting, loss = [], [], 0.0
    for _ in range(steps + 1):
        started = time.perf_counter()
        with timed_waits() as waits:
            begun = optimizer.begin()
            found = model.logprobs(own, temperature=1.0, with_entropy=True)
            output = weighted(found.logprobs_T, own, undivided)
            output.loss.backward()
            begun.end_pass()
            begun.divide(batch.num_tokens)
            begun.sum_over_ranks()
            begun.clip(SETTINGS.gradient_clip)
            optimizer.step(SETTINGS.learning_rate)
            begun.free()
        seconds.append(time.perf_counter() - started)
        waiting.append(sum(waits))
        loss = float(output.loss.detach())
    held = [*parameters.values(), *optimizer.state_dict().values()]
    kept = sum(tensor.nbytes for tensor in held)
    kept += ledger.report().kind_peak_bytes["gradients"]
    return Measured(
        seconds=statistics.median(seconds[1:]),
        waiting=statistics.median(waiting[1:]),
        kept=kept,
        loss=loss,
    )


def on_ranks(grid: RankGrid, path: Path, batch: SampleBatch, steps: int) -> list[Measured]:
    """What each rank has measured. Raises TimeoutError after DEADLINE_SECONDS."""
    with tempfile.TemporaryDirectory() as meeting:
        pipes, ranks = [], []
        for rank in range(grid.size):
            pipe, theirs = FORK.Pipe(duplex=False)
            arguments = (rank, grid, path, batch, steps, f"{meeting}/store", theirs)
            ranks.append(FORK.Process(target=_live, args=arguments, daemon=True))
            ranks[-1].start()
            theirs.close()
            pipes.append(pipe)
        try:
            found: list[Measured] = []
            for rank, pipe in enumerate(pipes):
                if not pipe.poll(DEADLINE_SECONDS):
                    raise TimeoutError(f"rank {rank} of {grid.degrees}: no result")
                found.append(pipe.recv())
            return found
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _live(
    rank: int,
    grid: RankGrid,
    path: Path,
    batch: SampleBatch,
    steps: int,
    store: str,
    pipe: Connection,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=grid.size,
        timeout=timedelta(seconds=DEADLINE_SECONDS),
    )
    pipe.send(train(grid, path, batch, steps))
    dist.barrier()  # no rank leaves while another still talks to it


def planned_bytes(degrees: UpdateDegrees, shape: Shape, batch: SampleBatch) -> int:
    """That a rank sends in the step, as the plan counts."""
    inner = batch.num_tokens - batch.num_samples
    replicas = degrees.data
    work = PlannedWork(
        tokens=(sum(map(len, batch.prompts)) + inner) // replicas,
        positions=(len(batch.prompts) + inner) // replicas,
        targets=batch.num_tokens // replicas,
        passes=1,
    )
    return stage_traffic(shape, degrees, work, 0, dtype="float32").total


def compare(size: str, groups: int, figures: Figures, *, repetitions: int, steps: int) -> None:
    """All layouts on one model, in turns. groups: of 8 samples."""
    found: dict[str, list[list[Measured]]] = {layout: [] for layout in LAYOUTS}
    batch = works(size, groups)[0].batch()
    with tempfile.TemporaryDirectory() as scratch:
        path = make_model(Path(scratch) / "model", SIZES[size])
        shape = shape_of(path)
        of = {
            layout: UpdateDegrees.model_validate({"data": 1, **degrees})
            for layout, (degrees, _) in LAYOUTS.items()
        }
        for _ in range(repetitions):
            for layout, degrees in of.items():
                grid = RankGrid(degrees, kv_heads=shape.kv_heads)
                found[layout].append(on_ranks(grid, path, batch, steps))
    alone = statistics.median(turn[0].seconds for turn in found["1 rank"])
    loss = found["1 rank"][0][0].loss
    for layout, turns in found.items():
        sharing = len(turns[0]) // (of[layout].data or 1)
        apart = max(abs(sum(rank.loss for rank in turn) / sharing - loss) for turn in turns)
        assert apart <= MOST_APART * abs(loss), f"{layout}: loss is {apart:g} off {loss:g}"
    for layout, turns in found.items():
        name, least = f"{size}, {layout}", LAYOUTS[layout][1]
        slowest = [max(turn, key=lambda rank: rank.seconds) for turn in turns]
        seconds = statistics.median(rank.seconds for rank in slowest)
        figures.add(f"{name}: a step", seconds, "s")
        figures.add(f"{name}: kept by a rank", slowest[0].kept / 2**20, "MiB")
        if layout == "1 rank":
            continue
        figures.add(f"{name}: faster than 1 rank", alone / seconds, "×", least=least)
        share = statistics.median(rank.waiting / rank.seconds for rank in slowest)
        figures.add(f"{name}: of it waiting", 100 * share, "%")
        sent = planned_bytes(of[layout], shape, batch)
        figures.add(f"{name}: sent by a rank, planned", sent / 2**20, "MiB")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two groups on the smallest model")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    figures = Figures()
    repetitions, steps = (1, 1) if arguments.quick else (5, 5)
    for size, groups in {"0.8M": 2}.items() if arguments.quick else {"0.8M": 8, "24.7M": 4}.items():
        compare(size, groups, figures, repetitions=repetitions, steps=steps)
    if arguments.json:
        figures.write(arguments.json, packages=["rljob", "torch"], facts={"threads a rank": 1})


if __name__ == "__main__":
    main()
