"""Weights to separated devices: slices by the plan, beside whole tensors from one device.

*Bytes*: what a device that generates receives, and what leaves the device that gives most, for the layout
pairs of `memory` with as many devices for either side; whole tensors are those of the strategy `stream`.
*Run*: the sync of whole runs through the command line, two devices that train one model and two that generate
with one; the strategies take turns.
"""

import argparse
import json
import statistics
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from benchmarks.reshard.memory import PAIRS
from benchmarks.reshard.sides import WIDTHS, dense, sparse
from benchmarks.reshard.step import REWARD, job_of
from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.runs import events_of
from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_runtime.task.tokenizer import save_byte_tokenizer

MIB = 2**20
WARM_UP_STEPS = 1
STRATEGIES = ("stream", "allgather")


def apart(shape: Shape, update: dict[str, int], rollout: dict[str, int]) -> ReshardPlan:
    """The pair, with devices of its own for either side."""
    trained = update_layout(shape, UpdateDegrees.model_validate(update))
    degrees = RolloutDegrees.model_validate(rollout)
    generated = rollout_layout(shape, degrees, first_device=len(trained.shards))
    return make_reshard_plan(trained, generated, WIDTHS)


def sent_and_received(plan: ReshardPlan) -> tuple[int, int]:
    """Bytes of the device that gives most, each once however many take it, and of the one that takes most."""
    given, taken = Counter[int](), Counter[int]()
    for bucket in plan.buckets:
        for step in plan.steps(bucket):
            if step.kind == "copy":
                continue
            for source, pieces in step.pieces.items():
                size = sum(map(plan.sent_bytes, pieces))
                given[source] += size
                taken.update({device: size for device in step.group if device != source})
    return max(given.values()), max(taken.values())


def count_pairs(hidden: int, figures: Figures) -> None:
    """By plan; of whole tensors, every taker gets the model and the first device gives it."""
    for name, (experts, update, rollout) in PAIRS.items():
        plan = apart((sparse if experts else dense)(hidden, 4, 512), update, rollout)
        sent, received = sent_and_received(plan)
        whole = 2 * plan.update.shape.total().total
        figures.add(f"{name}: received", received / MIB, "MiB", whole / MIB)
        figures.add(f"{name}: received, times fewer", whole / received, "×", least=1)
        figures.add(f"{name}: given at most, times fewer", whole / sent, "×")


def measure_runs(size: str, figures: Figures, *, steps: int, turns: int) -> None:
    """Seconds of a step's sync, checks and all, and bytes as the devices count them."""
    seconds: dict[str, list[float]] = defaultdict(list)
    received: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = make_model(folder / "model", SIZES[size])
        save_byte_tokenizer(model)
        prompts = [json.dumps({"prompt": f"count to {n}=", "answer": ""}) for n in range(64)]
        (folder / "prompts.jsonl").write_text("\n".join(prompts))
        (folder / "any.py").write_text(REWARD)
        for turn in range(turns):
            for strategy in STRATEGIES:
                job = separated(job_of(model, strategy, steps))
                events = events_of(job, folder, f"{strategy}-{turn}")
                seconds[strategy] += sync_seconds(events)
                found = [e["received_bytes"] for e in events if e["kind"] == "reshard"]
                received[strategy] = statistics.median(found) if found else 0.0
    for strategy in STRATEGIES:
        figures.add(
            f"run of {size}, {strategy}: sync", 1000 * statistics.median(seconds[strategy]), "ms"
        )
    ratio = statistics.median(seconds["stream"]) / statistics.median(seconds["allgather"])
    figures.add(f"run of {size}: sync by the plan, faster", ratio, "×")
    figures.add(f"run of {size}, allgather: received", received["allgather"] / MIB, "MiB")


def separated(job: dict[str, Any]) -> dict[str, Any]:
    """The same with two devices that generate with one model, beside those that train one."""
    spec = job["spec"]
    spec["placement"] = {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2}
    spec["rollout"] = {"parallelism": {"tensor": 2}}
    spec["accelerator"]["devicesPerNode"] = 4
    return job


def sync_seconds(events: list[dict[str, Any]]) -> list[float]:
    """By step, of the slowest device."""
    slowest: dict[int, float] = defaultdict(float)
    for event in events:
        if event["kind"] == "phase" and event["name"] == "sync":
            slowest[event["step"]] = max(slowest[event["step"]], event["end"] - event["start"])
    return [slowest[step] for step in sorted(slowest)][WARM_UP_STEPS:]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models, few turns")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    quick, figures = arguments.quick, Figures()
    count_pairs(128, figures)
    size = "0.8M" if quick else "24.7M"
    measure_runs(size, figures, steps=3 if quick else 6, turns=1 if quick else 3)
    if arguments.json:
        figures.write(arguments.json, packages=["rljob", "torch"], facts={"threads a rank": 1})


if __name__ == "__main__":
    main()
