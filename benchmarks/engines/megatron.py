"""Seconds of a training step of the update engine `megatron` beside the engine `torch` and transformers.

*In one process*: the work and the peers of `engines.update`; samples, attention and log-probs are those of
the engine `torch`, around Megatron Core's layers. *On ranks*, forks with a thread each over gloo: whole steps
of both engines in each layout, on samples of the longest lengths, a micro-batch of one prompt. Engines and
layouts take turns.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import megatron.core.distributed  # noqa: F401 - once, not in every fork
import torch

from benchmarks.engines.scaling import shape_of
from benchmarks.engines.update import (
    BEST,
    Work,
    each_size,
    make_ours,
    make_transformers,
    options,
    weighted,
)
from benchmarks.plan.engines import LAYOUTS as PLANNED
from benchmarks.plan.engines import engine_of, load, spec_of, train
from benchmarks.plan.search import Job
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.ranks import on_ranks
from benchmarks.support.results import Result, report, summarize
from benchmarks.support.turns import Do

TORCH = "engine torch"
MOST_SLOWER = 1.3
"""Than the engine `torch`."""
LAYOUTS = {name: degrees for name, degrees in PLANNED.items() if not name.endswith("ring")}
PROMPTS = {"0.8M": 8, "24.7M": 4}
"""Models, and prompts of a step on ranks."""


def make_megatron(path: Path) -> Do:
    """A side of `engines.update`."""
    job = job_of(path, prompts=1)
    spec = spec_of(job, {})
    engine = engine_of(job, spec, *load(job, spec))

    def step(work: Work, turn: int) -> float:
        begun = engine.begin(weighted)
        begun.add(work.batch())
        return engine.finish(begun, groups_with_signal=1)["loss"]

    return step


def job_of(path: Path, *, prompts: int) -> Job:
    """Of the model at that path."""
    return Job(path=path, shape=shape_of(path), prompts=prompts, steps=3)


def on_each_layout(size: str, prompts: int, *, turns: int) -> list[Result]:
    """Medians of the slowest rank's steps."""
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        job = job_of(make_model(Path(scratch) / "model", SIZES[size]), prompts=prompts)
        for _ in range(turns):
            for layout, degrees in LAYOUTS.items():
                for engine in ("megatron", "torch"):
                    spec = spec_of(job, degrees, engine=engine)
                    ranks = spec.accelerator.devices_per_node
                    found = on_ranks(ranks, partial(train, job, spec))
                    seconds.setdefault((layout, engine), []).append(max(found))
    return [
        summarize(
            f"{size} on ranks, {layout}",
            ours=seconds[layout, "megatron"],
            peers={TORCH: seconds[layout, "torch"]},
            unit="s",
            better="lower",
            targets={TORCH: 1 / MOST_SLOWER},
        )
        for layout in LAYOUTS
    ]


def targets(work: Work) -> dict[str, float]:
    """Gains that are wanted in one process."""
    return {TORCH: 1 / MOST_SLOWER} | ({BEST: 1.0} if work.ragged else {})


def main() -> None:
    arguments = options(__doc__.splitlines()[0]).parse_args()
    sides: dict[str, Callable[[Path], Do]] = {  # three of the largest model fit into 24 GB
        "rljob": make_megatron,
        TORCH: make_ours,
        BEST: partial(make_transformers, best=True),
    }
    results = each_size(sides, targets, arguments)
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    for size, prompts in PROMPTS.items():
        if size in arguments.sizes and not (arguments.quick and size != "0.8M"):
            results += on_each_layout(size, prompts, turns=1 if arguments.quick else 5)
    packages = ["rljob", "torch", "transformers", "megatron-core"]
    report(results, packages=packages, file=arguments.json)


if __name__ == "__main__":
    main()
