"""What a policy learns over several turns: products with a calculator and without, and a game of guesses.

The jobs are `examples/calculator.yaml` and `examples/plugin/guess-number.yaml`, on one emulated device each,
with more evaluations. Without the calculator, the same model trains for as many steps on the same products;
its worked examples are the products alone, and its warm-up, which does not reach the accuracy that it aims
at, goes on for all its steps. The example package is installed into a folder that goes away at the end.
Nothing is timed, so runs go on beside each other (`--at-once`). `--json FILE` writes what `write_docs.py`
shows, after every run; those that the file has are not made again.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning.turns_docs import GAME, TOOL, WITHOUT, turns_parts
from benchmarks.support.beside import runs_beside
from benchmarks.support.runs import events_of

sys.path.append(str(ROOT / "tests" / "support" / "driver"))

from example_plugin import install, path_with

EXAMPLES = ROOT / "examples"
PROBLEMS = EXAMPLES / "calculator" / "problems.jsonl"
FILES = {
    TOOL: EXAMPLES / "calculator.yaml",
    WITHOUT: EXAMPLES / "calculator.yaml",
    GAME: EXAMPLES / "plugin" / "guess-number.yaml",
}
EVERY = {TOOL: 5, WITHOUT: 5, GAME: 10}
"""Steps from one evaluation to the next."""
LONGEST_PRODUCT = 8
"""Tokens: four digits and an end, with room."""


def main() -> None:
    """Run seed after seed, all tasks in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two seeds, few steps, both with turns"
    )
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    options = parser.parse_args()
    seeds = options.seeds[:2] if options.quick else options.seeds
    wanted = [
        {"task": task, "seed": seed, "quick": options.quick}
        for seed, task in itertools.product(seeds, FILES)
        if not (options.quick and task == WITHOUT)  # its warm-up needs all its steps
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = path_with(install(Path(folder)))
        document = runs_beside(wanted, learn, file=options.json, at_once=options.at_once)
    print("\n\n".join(turns_parts(document)))


def learn(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One run: held-out accuracy, rewards, and turns by step."""
    task, seed = settings["task"], settings["seed"]
    problems = folder / f"{task} {seed}.jsonl".replace(" ", "-")
    job = job_of(task, problems, seed=seed, quick=settings["quick"])
    events = events_of(job, folder, problems.stem, "--local")
    steps = [event["metrics"] for event in events if event["kind"] == "step"]
    checks = [event for event in events if event["kind"] == "evaluation"]
    return {
        "prompts": checks[-1]["n"],
        "accuracy": [[check["step"], check["accuracy"]] for check in checks],
        "reward": [round(step["reward/mean"], 4) for step in steps],
        "turns": [round(step.get("turns/mean", 1.0), 3) for step in steps],
    }


def job_of(task: str, problems: Path, *, seed: int, quick: bool) -> dict[str, Any]:
    """The example's job. problems: a file that is written where the examples have none like it."""
    job: dict[str, Any] = yaml.safe_load(FILES[task].read_text())
    spec = job["spec"]
    spec["seed"] = seed
    spec["accelerator"]["devicesPerNode"] = 1
    spec["evaluation"]["every"] = EVERY[task]
    if task == TOOL:
        spec["data"]["jsonl"]["path"] = str(PROBLEMS)
        spec["rewards"][0]["python"]["path"] = str(EXAMPLES / "calculator" / "reward.py")
    if task == WITHOUT:
        problems.write_text("\n".join(map(_without_call, PROBLEMS.read_text().splitlines())) + "\n")
        spec["data"]["jsonl"]["path"] = str(problems)
        spec["rewards"] = [{"name": "correct", "type": "exact"}]
        spec["batch"]["maxResponseLength"] = LONGEST_PRODUCT
        del spec["rollout"]
    if quick:
        spec["steps"] = 2 * EVERY[task]
        spec["model"]["warmup"]["targetAccuracy"] = 0.1
        spec["evaluation"]["prompts"] = 64
    return job


def _without_call(line: str) -> str:
    """A problem whose worked example is its product alone."""
    problem = json.loads(line)
    return json.dumps(problem | {"shown": problem["shown"].rsplit(">", 1)[1]})


if __name__ == "__main__":
    main()
