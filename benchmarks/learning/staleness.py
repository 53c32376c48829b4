"""What staleness costs: GRPO where generation runs ahead of the update by up to η versions.

η = 0 is `flow.mode: sync`, others are `async` with `maxStaleness: η`; each of these is run with truncated
importance sampling of tokens between rollout and update (`rolloutCorrection`), and without: at η = 0 the
weights are 1, and one run is both. The job is `examples/quickstart.yaml` on a device that generates and one
that trains, with small batches in small micro-batches: generation is the faster side, and always as far ahead
as it may be. All runs of a seed begin with the same warmed-up model, whatever their learning rate. Nothing is
timed, so runs go on beside each other (`--at-once`). `--json FILE` writes what `write_docs.py` shows, after
every run; those that the file has are not made again.
"""

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning.staleness_docs import staleness_parts
from benchmarks.support.beside import runs_beside
from benchmarks.support.runs import events_of

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
RATES = (3e-5, 1e-4, 3e-4)
CASES = ((0, "none"), (1, "token"), (1, "none"), (4, "token"), (4, "none"))
"""η, and what weighs tokens (`rolloutCorrection.weight`)."""
STEPS, QUICK_STEPS = 120, 12


def main() -> None:
    """Run seed after seed, at each rate all cases in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one rate, η of 0 and 4, few steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[*RATES], help="learning rates")
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    options = parser.parse_args()
    seeds = options.seeds[:2] if options.quick else options.seeds
    rates = options.rates[-1:] if options.quick else options.rates
    wanted = [
        {
            "rate": rate,
            "bound": bound,
            "correction": correction,
            "seed": seed,
            "steps": QUICK_STEPS if options.quick else STEPS,
        }
        for seed, rate, (bound, correction) in itertools.product(seeds, rates, CASES)
        if not options.quick or bound != 1
    ]
    print(
        "\n\n".join(
            staleness_parts(runs_beside(wanted, learn, file=options.json, at_once=options.at_once))
        )
    )


def learn(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One run: what staleness it had, and what it learned."""
    name = "-".join(str(value) for value in settings.values())
    events = events_of(job_of(**settings), folder, name, "--local")
    done = [event["metrics"] for event in events if event["kind"] == "step"]
    first, last = (event for event in events if event["kind"] == "evaluation")
    return {
        "staleness": mean(step.get("staleness", 0.0) for step in done),
        "greatest": max(step.get("staleness/max", 0.0) for step in done),
        "kl": mean(step["mismatch/kl"] for step in done),
        "weight": mean(step.get("correction/mean", 1.0) for step in done),
        "reward": [round(step["reward/mean"], 4) for step in done],
        "before": first["accuracy"],
        "after": last["accuracy"],
        "prompts": last["n"],
    }


def job_of(*, rate: float, bound: int, correction: str, seed: int, steps: int) -> dict[str, Any]:
    """The quickstart with a device for each role; with few steps, on short words."""
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
        "rolloutCorrection": {"weight": correction},
    }
    spec["update"]["optimizer"]["learningRate"] = rate
    spec["evaluation"].pop("every")  # it would make both sides wait for each other
    if steps == QUICK_STEPS:
        spec["data"]["reasoningGym"]["params"]["max_word_len"] = 4
        spec["model"]["warmup"]["targetAccuracy"] = 0.2
        spec["evaluation"]["prompts"] = 128
    return job


if __name__ == "__main__":
    main()
