"""What staleness costs: GRPO where generation runs ahead of the update by up to η versions.

η = 0 is `flow.mode: sync`, others are `async` with `maxStaleness: η`; each is run with truncated importance
sampling of tokens between rollout and update (`rolloutCorrection`), and without. The job is
`examples/quickstart.yaml` on a device that generates and one that trains, with small batches in small
micro-batches: generation is the faster side, and always as far ahead as it may be. All runs of a seed begin
with the same warmed-up model. `--json FILE` writes what `write_docs.py` shows; other seeds that the file has
stay in it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning.staleness_docs import staleness_parts
from benchmarks.support.results import describe_machine
from benchmarks.support.runs import events_of

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
BOUNDS = (0, 1, 2, 4)
CORRECTIONS = {"corrected": "token", "not corrected": "none"}


def job_of(
    bound: int, correction: str, *, steps: int, seed: int, rate: float, quick: bool
) -> dict[str, Any]:
    """The quickstart with a device for each role."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {
        "steps": steps,
        "seed": seed,
        "accelerator": {"type": "emulated", "devicesPerNode": 2},
        "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        "flow": {"mode": "async", "maxStaleness": bound} if bound else {"mode": "sync"},
        "checkpoint": {},
    }
    spec["batch"] |= {"globalBatchSize": 8, "samplesPerPrompt": 8, "microBatchSize": 1}
    spec["algorithm"]["params"] = {
        "clipHigh": 0.28,
        "rolloutCorrection": {"weight": CORRECTIONS[correction]},
    }
    spec["update"]["optimizer"]["learningRate"] = rate
    spec["evaluation"].pop("every")  # it would make both sides wait for each other
    if quick:
        spec["data"]["reasoningGym"]["params"]["max_word_len"] = 4
        spec["model"]["warmup"]["targetAccuracy"] = 0.2
        spec["evaluation"]["prompts"] = 128
    return job


def learn(
    bound: int, correction: str, folder: Path, *, steps: int, seed: int, rate: float, quick: bool
) -> dict[str, Any]:
    """One run: what staleness it had, and what it learned."""
    job = job_of(bound, correction, steps=steps, seed=seed, rate=rate, quick=quick)
    events = events_of(job, folder, f"{bound}-{CORRECTIONS[correction]}-{seed}")
    done = [event["metrics"] for event in events if event["kind"] == "step"]
    first, last = (event for event in events if event["kind"] == "evaluation")
    return {
        "bound": bound,
        "correction": correction,
        "seed": seed,
        "staleness": mean(step.get("staleness", 0.0) for step in done),
        "greatest": max(step.get("staleness/max", 0.0) for step in done),
        "kl": mean(step["mismatch/kl"] for step in done),
        "furthest": max(step["mismatch/max"] for step in done),
        "weight": mean(step.get("correction/mean", 1.0) for step in done),
        "clipped": mean(step["clip_fraction"] for step in done),
        "reward": [step["reward/mean"] for step in done],
        "before": first["accuracy"],
        "after": last["accuracy"],
        "stderr": last["stderr"],
        "prompts": last["n"],
    }


def main() -> None:
    """Run seed after seed, bound after bound, with correction and without in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="η of 0 and 4, one seed, few steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--bounds", type=int, nargs="+", default=[*BOUNDS], help="values of η")
    parser.add_argument("--steps", type=int, default=120, help="of each run")
    parser.add_argument("--rate", type=float, default=3e-4, help="the optimizer's learning rate")
    options = parser.parse_args()
    seeds = options.seeds[:1] if options.quick else options.seeds
    bounds = [options.bounds[0], options.bounds[-1]] if options.quick else options.bounds
    settings = {
        "steps": 12 if options.quick else options.steps,
        "rate": options.rate,
        "quick": options.quick,
    }
    runs = [run for run in _known(options.json) if run["seed"] not in seeds]
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for bound in bounds:
                for correction in CORRECTIONS:
                    run = learn(bound, correction, Path(folder), seed=seed, **settings)
                    runs.append(run)
                    print(
                        f"seed {seed}, η {bound}, {correction}: staleness {run['staleness']:.2f} "
                        f"({run['greatest']:g}), mismatch KL {run['kl']:.2g}, "
                        f"{run['before']:.1%} → {run['after']:.1%}",
                        flush=True,
                    )
    runs.sort(key=lambda run: run["seed"])
    machine = describe_machine(["rljob", "torch", "ray"])
    document = {"rate": options.rate, "runs": runs, "machine": machine}
    print("\n\n".join(staleness_parts(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document) + "\n")


def _known(file: Path | None) -> list[dict[str, Any]]:
    """Runs that the file has."""
    if file is None or not file.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(file.read_text())["runs"]
    return runs


if __name__ == "__main__":
    main()
