"""The paper's ablation as whole runs: one GRPO job, with both techniques and without either one.

*both*: a warehouse of the dock for each node, and allgather-swap. *one warehouse*: all rows in one, as in a
central replay buffer. *plain all-gather*: the update's weights stay on devices that generate. Nothing else
differs; devices have the memory in which *both* can generate a whole step at a time. The forms take turns,
and ratios are of the same turn. `--json FILE` writes what `write_docs.py` shows.
"""

import argparse
import hashlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.run.ablation_docs import ablation_parts
from benchmarks.support.results import describe_machine
from benchmarks.support.runs import history_of
from rljob_runtime.record.event_types import DockEvent, StepEvent

EXAMPLES = ROOT / "examples"
BOTH = "both"
FORMS: dict[str, dict[str, Any]] = {
    BOTH: {},
    "one warehouse": {"dock": {"warehouses": 1}},
    "plain all-gather": {"resharding": {"strategy": "allgather"}},
}
"""What each changes in the job."""
MEMORY = "22M"
"""Of a device: what *both* needs, by `rljob plan`, to generate all samples of a step at a time."""
WARM_UP_STEPS = 2
TIMED = ("seconds", "tokens_per_second", "tps_eq5", "memory/")
"""Metrics whose names hold one of these need not be the same."""


def job_of(form: str, *, steps: int, prompts: int) -> dict[str, Any]:
    """The quickstart with a reference, on two nodes whose devices train one model and generate with one
    each. prompts: of a step."""
    job: dict[str, Any] = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    spec = job["spec"]
    spec["steps"] = steps
    del spec["evaluation"]
    spec["algorithm"]["params"]["klCoefficient"] = 1.0e-3
    spec["batch"] |= {"globalBatchSize": prompts, "microBatchSize": 2}
    spec["update"] |= {"parallelism": {"tensor": 2}, "recompute": "full"}
    spec["rollout"] = {"parallelism": {"data": 2}}
    spec["accelerator"] = {
        "type": "emulated",
        "nodes": 2,
        "devicesPerNode": 1,
        "memory": MEMORY,
    }
    spec["resharding"] = {"strategy": "allgather-swap"}
    return job | {"spec": spec | FORMS[form]}


def run_form(form: str, folder: Path, name: str, *, size: Mapping[str, int]) -> dict[str, Any]:
    """One run's figures, over the steps after the first ones, and the curves of all steps. throughput: the
    mean of Eq. 5, as the paper has it."""
    history = history_of(job_of(form, **size), folder, name)
    steps = [history.steps[step] for step in sorted(history.steps)]
    counted = sorted(history.steps)[WARM_UP_STEPS:]
    reshards = [history.reshards[step] for step in counted]
    phases = [history.phase_seconds(step) for step in counted]
    return {
        "tokens_per_second": [step.metrics["tps_eq5"] for step in steps],
        "throughput": statistics.mean(history.steps[step].metrics["tps_eq5"] for step in counted),
        "step_seconds": statistics.median(history.steps[step].seconds for step in counted),
        "generate_seconds": statistics.median(phase["generate"] for phase in phases),
        "dock_seconds": statistics.median(dock_seconds(history.docks[step]) for step in counted),
        "reshard_seconds": statistics.median(reshard.seconds for reshard in reshards),
        "peak_bytes": max(reshard.peak_bytes for reshard in reshards),
        "kept_bytes": max(reshard.kept_bytes or 0 for reshard in reshards),
        "host_bytes": max(reshard.host_bytes or 0 for reshard in reshards),
        "cache_bytes": max(max(told.cache_bytes or [0]) for r in reshards if (told := r.memory)),
        "metrics": {step.step: same_metrics(step) for step in steps},
        "weights": digest_of(Path(history.finished.checkpoint)),
    }


def dock_seconds(told: DockEvent) -> float:
    """What a step's workers spent in reads, writes and claims, added up; without waiting for each other."""
    return sum(
        state.transfer_seconds + state.wait_seconds - sum(state.waits.values())
        for state in told.states.values()
    )


def same_metrics(step: StepEvent) -> dict[str, float | None]:
    """Those that no clock and no ledger enters."""
    return {
        name: value
        for name, value in step.metrics.items()
        if not any(word in name for word in TIMED)
    }


def digest_of(checkpoint: Path) -> str:
    """Of the trained weights."""
    files = sorted(checkpoint.rglob("*.safetensors"))
    assert files, f"{checkpoint} holds no weights"
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def differences(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """All runs beside the first of `both`: the largest distance of rewards, metrics that differ in any step,
    and whether the trained weights are the same bits."""
    first = runs[BOTH][0]
    others = [run for form in runs.values() for run in form]
    apart: dict[str, float] = {}
    for run in others:
        for step, metrics in run["metrics"].items():
            for name, value in metrics.items():
                distance = abs(value - first["metrics"][step][name])
                apart[name] = max(apart.get(name, 0.0), distance)
    return {
        "runs": len(others),
        "reward": apart["reward/mean"],
        "metrics": len(apart),
        "apart": {name: distance for name, distance in sorted(apart.items()) if distance},
        "same_weights": all(run["weights"] == first["weights"] for run in others),
    }


def main() -> None:
    """Let the forms take turns; print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of few steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    turns = 1 if options.quick else 3
    size = {"steps": 4, "prompts": 8} if options.quick else {"steps": 30, "prompts": 32}
    runs: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(turns):
            for number, form in enumerate(FORMS):
                name = f"form-{number}-{turn}"
                run = run_form(form, Path(place), name, size=size)
                runs[form].append(run)
                print(f"{form}: {run['throughput']:,.0f} tokens/s a device", flush=True)
    document = {
        "machine": describe_machine(["rljob", "torch", "ray"]),
        "memory": MEMORY,
        "steps": size["steps"],
        "runs": {form: [figures_of(run) for run in of_form] for form, of_form in runs.items()},
        "differences": differences(runs),
    }
    print("\n\n".join(ablation_parts(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document) + "\n")


def figures_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the docs show of a run; of the metrics that are compared the reward alone."""
    rewards = [metrics["reward/mean"] for metrics in run["metrics"].values()]
    left_out = ("metrics", "weights")
    return {name: v for name, v in run.items() if name not in left_out} | {"rewards": rewards}


if __name__ == "__main__":
    main()
