"""Layouts of a small job on two CPU ranks: the order that `rljob plan --search` predicts, and the measured.

The parallel decoder with its optimizer, and the rollout engine `torch`, a thread each over gloo on this
machine; samples have the longest lengths, as the prediction takes them to have. Layouts take turns; every
turn forks its ranks anew. The prediction goes by rates that are measured here beforehand, which a user
would give by `--rate`. A step is a layout's update and another's generation, without the reshard between
them. Spearman's rank correlation is 1 where both orders agree.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engines.scaling import shape_of
from benchmarks.engines.update import SETTINGS, weighted
from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.ranks import on_ranks
from rljob_api.check.load import read_job
from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.machines import rates_of
from rljob_plan.performance import generating_parts, training_parts
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.decoder.parameters import purposes
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_grid import RolloutGrid
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer

UPDATES: dict[str, dict[str, Any]] = {
    "data 2": {"data": 2},
    "data 2, ZeRO 1": {"data": 2, "zero": 1},
    "data 2, ZeRO 2": {"data": 2, "zero": 2},
    "data 2, ZeRO 3": {"data": 2, "zero": 3},
    "tensor 2": {"tensor": 2},
    "context 2": {"context": 2},
    "context 2, ring": {"context": 2, "contextAlgorithm": "ring"},
    "pipeline 2": {"pipeline": 2},
}
ROLLOUTS: dict[str, dict[str, int]] = {
    "data 2": {"data": 2},
    "tensor 2": {"tensor": 2},
    "pipeline 2": {"pipeline": 2},
}
PROMPT, RESPONSE, SAMPLES = 64, 48, 4
RANKS = 2
WARM_UP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained and generated. prompts: in a step, as many micro-batches of one."""

    path: Path
    shape: Shape
    prompts: int
    steps: int

    def spec(
        self,
        *,
        update: Mapping[str, Any],
        rollout: Mapping[str, int],
        devices: int = RANKS,
        micro_batch: int = 1,
        settings: Mapping[str, Any] | None = None,
    ) -> ResolvedSpec:
        """The RLJob of a layout, as the search would predict it. micro_batch: prompts. settings: of the
        update, beside its layout."""
        manifest = {
            "apiVersion": "rljob.io/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "search"},
            "spec": {
                "steps": 1,
                "model": {"path": str(self.path)},
                "data": {"jsonl": {"path": "prompts.jsonl"}},
                "rewards": [{"name": "exact", "type": "exact"}],
                "batch": {
                    "globalBatchSize": self.prompts,
                    "samplesPerPrompt": SAMPLES,
                    "maxPromptLength": PROMPT,
                    "maxResponseLength": RESPONSE,
                    "microBatchSize": micro_batch,
                },
                "update": {"parallelism": dict(update), **(settings or {})},
                "rollout": {"parallelism": dict(rollout)},
                "accelerator": {"type": "emulated", "devicesPerNode": devices},
            },
        }
        return resolve(read_job(manifest)).spec

    def batches(self) -> list[SampleBatch]:
        """A micro-batch of each prompt; always the same."""
        draw = torch.Generator().manual_seed(0)

        def tokens(count: int) -> torch.Tensor:
            return torch.randint(0, self.shape.vocab, (count,), generator=draw)

        return [
            SampleBatch(
                prompts=[tokens(PROMPT)],
                group_of_B=torch.zeros(SAMPLES, dtype=torch.int64),
                responses=[tokens(RESPONSE) for _ in range(SAMPLES)],
                scalars={"advantage": torch.randn(SAMPLES, generator=draw)},
            )
            for _ in range(self.prompts)
        ]

    def groups(self) -> list[PromptGroup]:
        """Prompts to generate from."""
        return [
            PromptGroup(
                group=str(number),
                token_ids=batch.prompts[0].tolist(),
                uids=[f"{number}/{sample}" for sample in range(SAMPLES)],
                seeds=[(number << 20) + sample for sample in range(SAMPLES)],
            )
            for number, batch in enumerate(self.batches())
        ]


def train(job: Job, degrees: Mapping[str, Any], rank: int) -> float:
    """Median seconds of this rank's steps, after one that warms up."""
    parallelism = UpdateDegrees.model_validate({"data": 1, **degrees})
    groups = ProcessGroups(RankGrid(parallelism, kv_heads=job.shape.kv_heads), timeout_seconds=60)
    model = load_parallel(job.path, groups, dtype=torch.float32)
    optimizer = ParallelOptimizer(
        dict(model.trained_parameters()),
        purposes(model, job.shape),
        SETTINGS,
        groups=groups,
        everyone=dist.group.WORLD,
        ledger=MemoryLedger(device="unlimited"),
    )
    own = job.batches()[groups.grid.coordinates(rank).data :: parallelism.data]
    undivided = Totals(num_tokens=1, num_sequences=1)

    def step() -> None:
        begun = optimizer.begin()
        run_micro_batches(
            model,
            groups,
            own,
            temperature=1.0,
            loss=lambda number, said: weighted(said.logprobs_T, own[number], undivided).loss,
            after_backward=begun.end_pass,
        )
        begun.divide(job.prompts * SAMPLES * RESPONSE)
        begun.sum_over_ranks()
        begun.clip(SETTINGS.gradient_clip)
        optimizer.step(SETTINGS.learning_rate)
        begun.free()

    return median_seconds(step, job.steps)


def generate(job: Job, degrees: Mapping[str, int], rank: int) -> float:
    """Likewise of generating all responses, none of which ends early."""
    grid = RolloutGrid(RolloutDegrees.model_validate({"data": 1, **degrees}))
    engine = TorchRollout(
        job.path,
        groups=RolloutGroups(grid, timeout_seconds=60),
        dtype=torch.float32,
        max_sequences=job.prompts * SAMPLES,
        max_length=PROMPT + RESPONSE,
    )
    models = grid.degrees.data
    own = job.groups()[rank // (grid.size // models) :: models]
    how = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_response_length=RESPONSE, eos_ids=())

    def step() -> None:
        for _ in engine.generate(own, how):
            pass

    return median_seconds(step, job.steps)


def rates(job: Job, rank: int) -> dict[str, float]:
    """What `rljob_plan.machines` has of this machine, by rank, both at work at the same time.

    latency_seconds: what a collective of hidden states adds between products of the model's own size when it
    decodes, beside the time of its bytes: a rank has to wake up for it.
    """
    size, times = 768, 8
    a, wide = torch.randn(size, size), torch.randn(2**24)
    hidden = job.shape.hidden
    small, square = torch.randn(job.prompts * SAMPLES, hidden), torch.randn(hidden, 2 * hidden)
    flops = 2 * size**3 / median_seconds(lambda: torch.mm(a, a), times)
    read = wide.nbytes / median_seconds(lambda: wide.sum(), times)
    many, states = torch.zeros(2**21), torch.zeros(job.prompts * SAMPLES, hidden)
    link = many.nbytes / median_seconds(lambda: dist.all_reduce(many), times)

    def layers(*, meet: bool) -> None:
        for _ in range(100):
            torch.mm(small, square)
            if meet:
                dist.all_reduce(states)

    latency = median_seconds(lambda: layers(meet=True), times)
    latency = (latency - median_seconds(lambda: layers(meet=False), times)) / 100
    latency = max(latency - states.nbytes / link, 0.0)
    return {
        "flops": flops,
        "memory_bytes": read,
        "link_bytes": link,
        "latency_seconds": latency,
    }


def median_seconds(work: Callable[[], Any], times: int) -> float:
    """After WARM_UP; ranks begin together."""
    seconds = []
    for _ in range(WARM_UP + times):
        dist.barrier()
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[WARM_UP:])


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation of two lists without ties (Spearman 1904): 1 − 6 Σ d² / (n (n² − 1))."""
    number = len(first)
    places = [
        {value: place for place, value in enumerate(sorted(values))} for values in (first, second)
    ]
    apart = sum((places[0][a] - places[1][b]) ** 2 for a, b in zip(first, second, strict=True))
    return 1 - 6 * apart / (number * (number**2 - 1))


def compare(size: str, figures: Figures, *, prompts: int, turns: int, steps: int) -> None:
    """Measured and predicted seconds of every layout, and how far their orders agree."""
    with tempfile.TemporaryDirectory() as scratch:
        path = make_model(Path(scratch) / "model", SIZES[size])
        job = Job(path=path, shape=shape_of(path), prompts=prompts, steps=steps)
        emulated, shares = rates_of("emulated")
        reached = on_ranks(RANKS, partial(rates, job))[0]
        own = replace(emulated, **reached)
        for name, value in sorted(reached.items()):
            micro = name == "latency_seconds"
            unit, by = ("µs", 1e6) if micro else ("G", 1e-9)
            figures.add(f"{size}: a rank's {name}", value * by, unit)
        kinds: list[tuple[str, Mapping[str, Mapping[str, Any]], Any, Any]] = [
            ("training", UPDATES, train, training_parts),
            ("generation", ROLLOUTS, generate, generating_parts),
        ]
        found: list[tuple[dict[str, float], dict[str, float]]] = []
        for kind, layouts, measure, predict in kinds:
            measured: dict[str, list[float]] = {name: [] for name in layouts}
            for _ in range(turns):
                for name, degrees in layouts.items():
                    measured[name].append(max(on_ranks(RANKS, partial(measure, job, degrees))))
            predicted = {}
            for name, degrees in layouts.items():
                layout = {"data": 1, **degrees}
                training = kind == "training"
                spec = job.spec(
                    update=layout if training else {}, rollout={} if training else layout
                )
                predicted[name] = sum(predict(spec, job.shape, own, shares).values())
            medians = {name: statistics.median(seconds) for name, seconds in measured.items()}
            add(f"{size}, {kind}", medians, predicted, figures)
            found.append((medians, predicted))
        measured_steps, predicted_steps = (
            [update + rollout for update in updates.values() for rollout in rollouts.values()]
            for updates, rollouts in zip(*found, strict=True)
        )
        number = len(measured_steps)
        agreement = spearman(measured_steps, predicted_steps)
        figures.add(f"{size}, {number} steps: rank correlation", agreement, "", least=0.7)
        best = min(range(number), key=predicted_steps.__getitem__)
        lost = measured_steps[best] / min(measured_steps)
        figures.add(f"{size}: the step that is proposed, in times of the best", lost, "", 1.2)


def add(
    name: str, measured: Mapping[str, float], predicted: Mapping[str, float], figures: Figures
) -> None:
    """Take both orders down."""
    by_time, foretold = (
        {
            layout: place
            for place, layout in enumerate(sorted(seconds, key=lambda one: seconds[one]), 1)
        }
        for seconds in (measured, predicted)
    )
    for layout, seconds in measured.items():
        figures.add(f"{name}, {layout}: measured, place {by_time[layout]}", seconds, "s")
        place = foretold[layout]
        figures.add(f"{name}, {layout}: predicted, place {place}", predicted[layout], "s")
    agreement = spearman(list(measured.values()), [predicted[layout] for layout in measured])
    figures.add(f"{name}: rank correlation", agreement, "", least=0.7)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn on the smallest model")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # before the first fork: threads do not survive one
    figures = Figures()
    turns, steps = (1, 1) if arguments.quick else (3, 3)
    for size in ("0.8M",) if arguments.quick else ("0.8M", "24.7M"):
        compare(size, figures, prompts=4 if arguments.quick else 8, turns=turns, steps=steps)
    if arguments.json:
        figures.write(arguments.json, packages=["rljob", "torch"], facts={"threads a rank": 1})


if __name__ == "__main__":
    main()
