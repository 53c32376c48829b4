"""The update engine `megatron` on emulated devices, planned and measured: memory and time by layout.

Whole steps of the engine on ranks that are forks with a thread each over gloo; samples have the longest
lengths, as plans take them to have. Memory is the most that the fullest rank holds in a step, tensor by
tensor; what is planned is the phase `update` of `rljob plan` without the rollout's part. Time goes by rates
that are measured here, and by two shares that are solved from steps of data 2, with micro-batches of one
prompt and with one of all; the other layouts are predicted. Layouts take turns; every turn forks anew.
"""

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import megatron.core.distributed  # noqa: F401 - once, not in every fork
import torch
import torch.distributed as dist

from benchmarks.engines.scaling import shape_of
from benchmarks.engines.update import weighted
from benchmarks.plan.search import RANKS, Job, median_seconds, rates
from benchmarks.support.figures import Figures
from benchmarks.support.held_memory import HeldMemory
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.ranks import on_ranks
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.machines import MachineRates, RateShares, rates_of
from rljob_plan.memory import plan_memory
from rljob_plan.performance import training_parts
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine, make_update
from rljob_runtime.weights.held_policy import LocalPolicy, load_local_policy

LAYOUTS: dict[str, dict[str, Any]] = {
    "1 rank": {},
    "data 2": {"data": 2},
    "data 2, ZeRO 1": {"data": 2, "zero": 1},
    "tensor 2": {"tensor": 2},
    "context 2": {"context": 2},
    "context 2, ring": {"context": 2, "contextAlgorithm": "ring"},
    "pipeline 2": {"pipeline": 2},
}
UPDATES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "recompute": {"recompute": "full"},
}
"""What memory is measured with."""
MOST_APART = 10.0
"""Percent."""
SOLVED = "data 2"


def spec_of(job: Job, degrees: Mapping[str, Any], micro_batch: int = 1, **how: Any) -> ResolvedSpec:
    """Of as many devices as the degrees need."""
    names = ("data", "tensor", "pipeline", "context")
    devices = math.prod(degrees.get(name, 1) for name in names)
    settings = {"engine": "megatron"} | how
    layout = {"data": 1, **degrees}
    return job.spec(
        update=layout, rollout={}, devices=devices, micro_batch=micro_batch, settings=settings
    )


def load(job: Job, spec: ResolvedSpec) -> tuple[UpdateRanks, LocalPolicy]:
    """This rank's groups and policy."""
    grid = RankGrid(spec.update.parallelism, kv_heads=job.shape.kv_heads)
    ranks = UpdateRanks()
    if grid.size > 1:
        ranks = UpdateRanks.of(ProcessGroups(grid, timeout_seconds=60), dist.group.WORLD)
    return ranks, load_local_policy(job.path, ranks, dtype=DTYPES[spec.update.dtype])


def engine_of(
    job: Job, spec: ResolvedSpec, ranks: UpdateRanks, policy: LocalPolicy
) -> AnyUpdateEngine:
    """This rank's."""
    return make_update(
        UpdateSetup(
            spec=spec,
            model=job.path,
            policy=policy.model,
            purposes=policy.purposes,
            total_steps=1000,
            ranks=ranks,
            ledger=MemoryLedger(device="unlimited"),
        )
    )


def stepping(
    job: Job, spec: ResolvedSpec, ranks: UpdateRanks, policy: LocalPolicy
) -> Callable[[], None]:
    """An optimizer step of this rank's engine on its share of the prompts."""
    engine = engine_of(job, spec, ranks, policy)
    replica, replicas = ranks.share
    own, size = job.batches()[replica::replicas], spec.batch.micro_batch_size or 1
    batches = [SampleBatch.join(own[at : at + size]) for at in range(0, len(own), size)]

    def step() -> None:
        begun = engine.begin(weighted)
        for batch in batches:
            begun.add(batch)
        engine.finish(begun, groups_with_signal=len(own))

    return step


def hold(job: Job, spec: ResolvedSpec, rank: int) -> int:
    """Bytes at the fullest moment of the second step: the first makes the optimizer's moments."""
    ranks, policy = load(job, spec)
    with HeldMemory() as held:
        step = stepping(job, spec, ranks, policy)
        step()
        held.peak = 0
        step()
    return held.peak


def train(job: Job, spec: ResolvedSpec, rank: int) -> float:
    """Median seconds of this rank's steps, after one that warms up."""
    return median_seconds(stepping(job, spec, *load(job, spec)), job.steps)


def compute(job: Job, spec: ResolvedSpec, rank: int) -> float:
    """Least processor seconds of a step: what else runs on the machine takes none of them."""
    step, seconds = stepping(job, spec, *load(job, spec)), []
    for _ in range(1 + job.steps):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    return min(seconds[1:])


def compare_memory(size: str, job: Job, figures: Figures) -> None:
    """Of all layouts."""
    for layout, degrees in LAYOUTS.items():
        for name, how in UPDATES.items():
            spec = spec_of(job, degrees, **how)
            ranks = spec.accelerator.devices_per_node
            found = max(on_ranks(ranks, partial(hold, job, spec)))
            phases = {phase.name: phase for phase in plan_memory(spec, job.shape).phases}
            parts = phases["update"].parts
            planned = sum(parts[one] for one in parts if one not in ("rollout weights", "KV cache"))
            text = f"{size}, {layout}, {name}: {found / 2**20:.2f} MiB held, {planned / 2**20:.2f} planned"
            figures.add(text, 100 * abs(planned / found - 1), "% apart", MOST_APART)


def compare_time(size: str, job: Job, figures: Figures, turns: int) -> None:
    """Of the layouts of two ranks."""
    own = replace(rates_of("emulated")[0], **on_ranks(RANKS, partial(rates, job))[0])
    layouts = {name: degrees for name, degrees in LAYOUTS.items() if degrees}
    specs = {name: spec_of(job, degrees) for name, degrees in layouts.items()}
    whole = spec_of(job, LAYOUTS[SOLVED], micro_batch=job.prompts // 2)
    found: dict[str, list[float]] = {}
    computing: dict[str, list[float]] = {}
    for _ in range(turns):
        for name, spec in (specs | {"one pass": whole}).items():
            found.setdefault(name, []).append(max(on_ranks(RANKS, partial(train, job, spec))))
        for engine in ("megatron", "torch"):
            alone = partial(compute, job, spec_of(job, {}, engine=engine))
            computing.setdefault(engine, []).append(on_ranks(1, alone)[0])
    seconds = {name: statistics.median(times) for name, times in found.items()}
    slower = statistics.median(
        ours / theirs for ours, theirs in zip(*computing.values(), strict=True)
    )
    figures.add(f"{size}, 1 rank: processor seconds, in those of engine torch", slower, "")
    shares = solved(job, own, specs[SOLVED], seconds[SOLVED], whole, seconds["one pass"])
    figures.add(f"{size}: products", shares.products, "")
    figures.add(f"{size}: pass_seconds", 1000 * shares.pass_seconds, "ms")
    for name, spec in specs.items():
        predicted = sum(training_parts(spec, job.shape, own, shares).values())
        if name == SOLVED:
            figures.add(f"{size}, {name}: a step, from which rates are solved", seconds[name], "s")
            continue
        text = f"{size}, {name}: {seconds[name]:.3f} s a step, {predicted:.3f} predicted"
        figures.add(text, 100 * abs(predicted / seconds[name] - 1), "% apart", MOST_APART)


def solved(
    job: Job, machine: MachineRates, many: ResolvedSpec, slow: float, one: ResolvedSpec, fast: float
) -> RateShares:
    """With which the step of many micro-batches takes `slow` seconds, and that of one `fast`."""
    shares = replace(rates_of("emulated")[1], pass_seconds=0.0, products=1.0)
    parts = [training_parts(spec, job.shape, machine, shares) for spec in (many, one)]
    products = parts[0]["update"]
    many_seconds, one_seconds = (
        seconds - (sum(found.values()) - products)
        for seconds, found in zip((slow, fast), parts, strict=True)
    )
    one_pass = replace(shares, pass_seconds=1.0)
    each = training_parts(one, job.shape, machine, one_pass)["update"] - products
    number = many.batch.passes(many.update.parallelism.data)
    pass_seconds = max(0.0, (many_seconds - one_seconds) / (each * (number - 1)))
    left = many_seconds - pass_seconds * each * number
    return replace(shares, pass_seconds=pass_seconds, products=products / left)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn on the smallest model")
    parser.add_argument("--only", choices=("memory", "time"), help="leave the other out")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    figures = Figures()
    turns = 1 if arguments.quick else 5
    with tempfile.TemporaryDirectory() as scratch:
        for size in ("0.8M",) if arguments.quick else ("0.8M", "3.8M"):
            path = make_model(Path(scratch) / size, SIZES[size])
            job = Job(path=path, shape=shape_of(path), prompts=8, steps=3)
            if arguments.only != "time":
                compare_memory(size, job, figures)
            if arguments.only != "memory":
                compare_time(size, job, figures, turns)
    if arguments.json:
        packages = ["rljob", "torch", "megatron-core"]
        figures.write(arguments.json, packages=packages, facts={"threads a rank": 1})


if __name__ == "__main__":
    main()
