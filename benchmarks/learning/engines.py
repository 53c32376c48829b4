"""What whole runs learn with the update engine `megatron`, beside the engine `torch` from the same seeds.

The job is `examples/quickstart.yaml`, alike but for `update.engine`: both begin with the same warmed-up model
and draw by the same seeds. Nothing is timed, so runs go on beside each other (`--at-once`). `--json FILE`
writes what `write_docs.py` shows, after every run; those that the file has are not made again.
"""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.support.beside import Run, runs_beside
from benchmarks.support.intervals import said_points, said_seeds, said_share
from benchmarks.support.runs import gain_of, quarters
from benchmarks.support.tables import table

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
ENGINES = ("torch", "megatron")
QUICK_STEPS = 8


def learn(settings: Mapping[str, Any], folder: Path) -> Run:
    """One run: what is held out before and after, and the reward of each step."""
    return gain_of(job_of(**settings), folder, "-".join(map(str, settings.values())))


def job_of(*, engine: str, seed: int, steps: int) -> dict[str, Any]:
    """The quickstart; with few steps, on short words."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "seed": seed}
    spec["update"]["engine"] = engine
    spec["evaluation"]["every"] = steps
    if steps == QUICK_STEPS:
        spec["batch"]["globalBatchSize"] = 8
        spec["data"]["reasoningGym"]["params"]["max_word_len"] = 4
        spec["model"]["warmup"]["targetAccuracy"] = 0.2
        spec["evaluation"]["prompts"] = 64
    return job


def engines_parts(document: Mapping[str, Any]) -> list[str]:
    """A row an engine."""
    runs = document["runs"]
    of = {engine: [run for run in runs if run["engine"] == engine] for engine in ENGINES}
    rows = [
        [
            f"`{engine}`",
            said_share([run["before"] for run in found]),
            f"{mean(quarters(run['reward'])[-1] for run in found):.3f}",
            said_share([run["after"] for run in found]),
            said_points(
                [
                    run["after"] - beside["after"]
                    for run, beside in zip(found, of["torch"], strict=True)
                ]
            )
            if engine != "torch"
            else "",
            ", ".join(f"{100 * run['after']:.1f}" for run in found),
        ]
        for engine, found in of.items()
    ]
    heads = ["held out, before", "reward, last quarter", "after", "beside `torch`", "each seed"]
    return [
        f"{runs[0]['steps']} steps of the quickstart; {said_seeds(len(of['torch']))} Accuracy is on "
        f"{runs[0]['prompts']} held-out prompts; *beside `torch`* is the difference to the run of the same "
        "seed, in points:",
        table(heads, rows),
    ]


def main() -> None:
    """Run seed after seed with each engine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds, few steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    options = parser.parse_args()
    seeds: Sequence[int] = options.seeds[:2] if options.quick else options.seeds
    steps = QUICK_STEPS if options.quick else 140
    wanted = [
        {"engine": engine, "seed": seed, "steps": steps}
        for seed, engine in itertools.product(seeds, ENGINES)
    ]
    document = runs_beside(wanted, learn, file=options.json, at_once=options.at_once)
    print("\n\n".join(engines_parts(document)))


if __name__ == "__main__":
    main()
