"""What algorithms learn from as many tokens: the tiny model on three tasks, several seeds, whole runs.

The jobs are those of `examples/`, with the algorithm, the steps and the seed changed, and on one emulated
device each; all algorithms begin with the same warmed-up model of their task and seed. Nothing is timed, so
runs go on beside each other (`--at-once`). `--json FILE` writes what `write_docs.py` shows, after every run
what there is until then; other seeds that the file has stay in it.
"""

import argparse
import copy
import itertools
import json
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning.algorithms_docs import learning_parts
from benchmarks.support.results import describe_machine
from benchmarks.support.runs import steps_of

EXAMPLES = ROOT / "examples"
TASKS = {
    "spelling backward": "quickstart.yaml",
    "sorting letters": "sort-letters.yaml",
    "sums": "chain-sum.yaml",
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "GRPO": {"name": "grpo"},
    "RLOO": {"name": "rloo"},
    "DAPO": {"name": "dapo", "params": {"dynamicSampling": {"maxRounds": 3}}},
    "PPO": {"name": "ppo"},
    "PF-PPO": {"name": "ppo", "params": {"sampleFilter": {"strategy": "best-worst", "keep": 4}}},
}
CRITIC = {"optimizer": {"learningRate": 3.0e-4}}
"""As fast as the policy: the tiny model's critic begins with a head of zeros."""
CHECKS = 6
"""Evaluations of a run after its first."""


def learn(task: str, algorithm: str, folder: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """One run: held-out accuracy by the response tokens that were generated until then."""
    job = yaml.safe_load((EXAMPLES / TASKS[task]).read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "seed": seed, "algorithm": copy.deepcopy(ALGORITHMS[algorithm])}
    if spec["algorithm"]["name"] == "ppo":
        spec["critic"] = CRITIC
    spec["evaluation"]["every"] = max(1, steps // CHECKS)
    spec["accelerator"] = {"type": "emulated", "devicesPerNode": 1}
    return learning_run(
        job, folder, f"{TASKS[task].removesuffix('.yaml')}-{algorithm.lower()}-{seed}"
    )


def learning_run(job: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """Run a job in `folder` under that name: what it reached after how many tokens."""
    done = steps_of(job, folder, name)
    tokens = [0.0]
    for event in done:
        tokens.append(
            tokens[-1] + event["metrics"]["response_tokens_per_second"] * event["seconds"]
        )
    lines = map(json.loads, (folder / name / "events.jsonl").read_text().splitlines())
    checks = [event for event in lines if event["kind"] == "evaluation"]
    return {
        "seed": job["spec"].get("seed", 0),
        "prompts": checks[-1]["n"],
        "k": checks[-1]["k"],
        "accuracy": [[round(tokens[check["step"]]), check["accuracy"]] for check in checks],
        "sets": [_sets(checks[0]), _sets(checks[-1])],
        "reward": [event["metrics"]["reward/mean"] for event in done],
        "trained_seconds": done[-1]["time"] - done[0]["time"],
    }


def _sets(check: Mapping[str, Any]) -> dict[str, list[float]]:
    """Accuracy, its standard error and the number of prompts of each held-out set; that of the job itself
    is `own`."""
    sets = {"own": check, **check.get("suites", {})}
    return {name: [found["accuracy"], found["stderr"], found["n"]] for name, found in sets.items()}


def main() -> None:
    """Run task after task, seed after seed, all algorithms in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two algorithms, one task, 6 steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS], default=[*TASKS])
    options = parser.parse_args()
    tasks = options.tasks[:1] if options.quick else options.tasks
    seeds = options.seeds[:1] if options.quick else options.seeds
    algorithms = ["GRPO", "PPO"] if options.quick else [*ALGORITHMS]
    steps = CHECKS if options.quick else options.steps
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        task: {name: _others(options.json, task, name, seeds) for name in algorithms}
        for task in tasks
    }
    waiting = {}
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(options.at_once) as pool:
        shutil.copytree(EXAMPLES / "sort-letters", Path(place, "sort-letters"))
        for seed, task, algorithm in itertools.product(seeds, tasks, algorithms):
            run = pool.submit(learn, task, algorithm, Path(place), steps=steps, seed=seed)
            waiting[run] = (task, algorithm)
        for done in as_completed(waiting):
            task, algorithm = waiting[done]
            learnt = done.result()
            runs[task][algorithm].append(learnt)
            runs[task][algorithm].sort(key=itemgetter("seed"))
            (_, before), (spent, after) = learnt["accuracy"][0], learnt["accuracy"][-1]
            print(
                f"{task}, seed {learnt['seed']}, {algorithm}: {before:.1%} → {after:.1%} "
                f"with {spent:,} tokens",
                flush=True,
            )
            document = {
                "runs": {
                    task: {name: several for name, several in each.items() if several}
                    for task, each in runs.items()
                    if any(each.values())
                },
                "machine": describe_machine(["rljob", "torch", "ray"]),
            }
            if options.json is not None:
                options.json.write_text(json.dumps(document) + "\n")
    print("\n\n".join(learning_parts(document)))


def _others(file: Path | None, task: str, algorithm: str, seeds: list[int]) -> list[dict[str, Any]]:
    """Runs of other seeds that the file has."""
    if file is None or not file.exists():
        return []
    runs = json.loads(file.read_text())["runs"]
    return [run for run in runs.get(task, {}).get(algorithm, []) if run["seed"] not in seeds]


if __name__ == "__main__":
    main()
