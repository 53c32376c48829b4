"""Seconds of a training step whose responses have a long tail, with and without a partial rollout.

A letter is to be repeated as often as the prompt says: mostly a few times, in one prompt of sixteen up
to 160 times. The two take turns; every run has the same prompts and seeds. Beside the seconds stands
the mean reward of the last steps. `--json FILE` writes the table.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.support.results import report, summarize
from benchmarks.support.runs import seconds_a_step, steps_of

WARM_UP_STEPS = 4
LAST_STEPS = 5
FLOWS: dict[str, dict[str, Any]] = {
    "whole samples": {"mode": "streaming"},
    "partial rollout": {"mode": "streaming", "partialRollout": {"budgetTokens": 48}},
}
REWARD = '''
def reward(prompt, response, answer):
    """How near the response is to the answer: 1 for the same letters, 0 from twice as many on."""
    response = response.strip()
    if set(response) - set(answer):
        return 0.0
    return max(0.0, 1.0 - abs(len(response) - len(answer)) / len(answer))
'''


def questions(count: int) -> list[dict[str, str]]:
    """Prompts such as `k37=` with their answers; one of sixteen is long."""
    drawn = random.Random(7)
    found = []
    for _ in range(count):
        letter = drawn.choice("abcdefghijklmnopqrstuvwxyz")
        times = drawn.randint(60, 160) if drawn.random() < 1 / 16 else drawn.randint(2, 8)
        found.append({"prompt": f"{letter}{times}=", "answer": letter * times})
    return found


def job_of(flow: dict[str, Any], steps: int) -> dict[str, Any]:
    """A small job on one device."""
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "long-tail"},
        "spec": {
            "steps": steps,
            "model": {"builtin": "tiny", "warmup": {"targetAccuracy": 0.3, "maxSteps": 40}},
            "data": {"jsonl": {"path": "questions.jsonl"}},
            "rewards": [{"name": "near", "type": "python", "python": {"path": "near.py"}}],
            "batch": {
                "globalBatchSize": 16,
                "samplesPerPrompt": 4,
                "maxPromptLength": 8,
                "maxResponseLength": 192,
            },
            "update": {"optimizer": {"learningRate": 1e-4}},
            "flow": flow,
            "checkpoint": {},
        },
    }


def main() -> None:
    """Let the two take turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition of few steps")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    repetitions, steps = (1, 12) if options.quick else (3, 24)
    seconds: dict[str, list[float]] = {name: [] for name in FLOWS}
    rewards: dict[str, list[float]] = {name: [] for name in FLOWS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "near.py").write_text(REWARD)
        lines = [json.dumps(question) for question in questions(4000)]
        (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")
        for repetition in range(repetitions):
            for name, flow in FLOWS.items():
                run = f"{name.replace(' ', '-')}-{repetition}"
                done = steps_of(job_of(flow, steps), folder, run)
                seconds[name].append(
                    seconds_a_step([step["time"] for step in done], warm_up=WARM_UP_STEPS)
                )
                last = [step["metrics"]["reward/mean"] for step in done[-LAST_STEPS:]]
                rewards[name].append(mean(last))
                took, reward = seconds[name][-1], rewards[name][-1]
                print(f"{name}: {took:.2f} s a step, reward {reward:.3f}", flush=True)
    whole, partial = FLOWS
    results = [
        summarize(
            "a step with a long tail of lengths",
            ours=seconds[partial],
            peers={whole: seconds[whole]},
            unit="seconds",
            better="lower",
            target=1.2,
        ),
        summarize(
            f"mean reward of the last {LAST_STEPS} of {steps} steps",
            ours=rewards[partial],
            peers={whole: rewards[whole]},
            unit="reward",
            better="higher",
            target=0.95,
        ),
    ]
    report(results, packages=["rljob", "torch", "ray"], file=options.json)


if __name__ == "__main__":
    main()
