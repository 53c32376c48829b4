"""What the policy learns from preferences and from other models: DPO, a reward model, a teacher.

Whole runs of the quickstart's task from the same warmed-up `tiny`: DPO on pairs of its own rollouts, with
the held-out win rate against the policy that it began with; GRPO whose only reward is a reward model that is
trained here, with the true accuracy beside its score; a weaker `tiny` that learns from a stronger one.
`--json FILE` writes what `write_docs.py` shows, after every run; other subjects that the file has stay in it.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.learning.preferences_docs import preferences_parts
from benchmarks.learning.reward_model import train_reward_model
from benchmarks.learning.win_rate import held_out_rewards, win_rate
from benchmarks.support.results import describe_machine
from benchmarks.support.runs import QUARTERS, events_of, quarters
from rljob_api.check.load import read_job
from rljob_runtime.models.builtin import policy_path
from rljob_runtime.models.export import find_model

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
TRUTH = {"name": "correct", "type": "dataset", "threshold": 1.0, "weight": 0.0}
"""The first reward says what is accurate; without weight it teaches nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """steps: of each run. scorer_steps: of the reward model. start, weak, strong, best: accuracy that
    warm-ups aim at. warm_up_steps: at most. longest: word; of those that a reward model judges, easy_longest:
    a model of this size cannot compare longer ones."""

    steps: int = 60
    scorer_steps: int = 900
    start: float = 0.5
    weak: float = 0.25
    strong: float = 0.8
    best: float = 0.9
    warm_up_steps: int = 400
    longest: int = 9
    easy_longest: int = 5
    prompts: int = 512


QUICK = Size(
    steps=8,
    scorer_steps=40,
    start=0.2,
    weak=0.1,
    strong=0.4,
    best=0.4,
    longest=4,
    easy_longest=4,
    prompts=128,
)


def quickstart(seed: int, size: Size) -> dict[str, Any]:
    """The quickstart with an evaluation and a checkpoint after each quarter of its steps."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec, every = job["spec"], size.steps // QUARTERS
    spec |= {
        "seed": seed,
        "steps": size.steps,
        "evaluation": {"prompts": size.prompts, "every": every},
        "checkpoint": {"every": every, "keep": QUARTERS},
    }
    spec["data"]["reasoningGym"]["params"]["max_word_len"] = size.longest
    return job


def start_from(job: dict[str, Any], accuracy: float, size: Size, folder: Path) -> Path:
    """Let the job's policy be a `tiny` that was warmed up to this accuracy on held-out prompts."""
    warm_up = {"targetAccuracy": accuracy, "maxSteps": size.warm_up_steps}
    job["spec"]["model"] = {"builtin": "tiny", "warmup": warm_up}
    model = policy_path(read_job(job), base_dir=folder, cache_dir=folder, progress=lambda _: None)
    job["spec"]["model"] = {"path": str(model)}
    return model


def learn_pairs(folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """DPO on the best and the worst response to each prompt; letters in their place count."""
    job = quickstart(seed, size)
    spec = job["spec"]
    start = start_from(job, size.start, size, folder)
    spec["algorithm"] = {"name": "dpo", "params": {"beta": 0.1}}
    spec["rewards"] = [{"name": "letters", "type": "dataset"}]
    spec["batch"]["epochs"] = 2
    found = learned(job, folder, f"dpo-{seed}")
    known = read_job(job)
    theirs = held_out_rewards(known, start, noise="opponent")
    models = [
        start,
        *(
            find_model(place)
            for place in sorted((folder / f"dpo-{seed}").glob("checkpoints/step-*"))
        ),
    ]
    wins = [win_rate(held_out_rewards(known, model), theirs) for model in models]
    return found | {
        "margin": quarters(found["metrics"]["pairs/margin"]),
        "wins": [[rate.share, rate.stderr] for rate in wins],
    }


def learn_from_reward_model(folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """GRPO by the score of a reward model alone, near the policy that the model has seen responses of."""
    job = quickstart(seed, replace(size, longest=size.easy_longest))
    spec, scorer = job["spec"], folder / f"reward-model-{seed}"
    best = start_from(job, size.best, size, folder)
    start = start_from(job, size.start, size, folder)
    told_apart = train_reward_model(read_job(job), start, best, scorer, steps=size.scorer_steps)
    liked = {"name": "liked", "type": "model", "model": {"path": str(scorer)}}
    spec["rewards"] = [TRUTH, liked]
    spec["algorithm"]["params"]["klCoefficient"] = 0.1
    found = learned(job, folder, f"scored-{seed}")
    return found | {
        "told_apart": told_apart,
        "score": quarters(found["metrics"]["reward/liked"]),
    }


def learn_from_teacher(folder: Path, seed: int, size: Size) -> dict[str, Any]:
    """On-policy distillation of a `tiny` that was warmed up for longer; rewards are measured alone."""
    job = quickstart(seed, size)
    spec = job["spec"]
    teacher = start_from(job, size.strong, size, folder)
    start_from(job, size.weak, size, folder)
    spec["algorithm"] = {"name": "distillation"}
    spec["teacher"] = {"path": str(teacher)}
    found = learned(job, folder, f"taught-{seed}")
    return found | {
        "teacher": mean(held_out_rewards(read_job(job), teacher)),
        "kl": quarters(found["metrics"]["teacher/kl"]),
    }


SUBJECTS: dict[str, Callable[[Path, int, Size], dict[str, Any]]] = {
    "pairs": learn_pairs,
    "reward model": learn_from_reward_model,
    "teacher": learn_from_teacher,
}


def learned(job: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """A run's evaluations and metrics by step."""
    events = events_of(job, folder, name)
    checks = [event for event in events if event["kind"] == "evaluation"]
    done = [event["metrics"] for event in events if event["kind"] == "step"]
    return {
        "seed": job["spec"]["seed"],
        "prompts": checks[-1]["n"],
        "accuracy": [[check["step"], check["accuracy"], check["stderr"]] for check in checks],
        "held_out_reward": [check["reward"] for check in checks],
        "metrics": {name: [step[name] for step in done if name in step] for name in done[-1]},
    }


def main() -> None:
    """Run seed after seed, subject after subject."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short words, a few steps, one seed")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--subjects", nargs="+", choices=[*SUBJECTS], default=[*SUBJECTS])
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    runs = _known(options.json)
    for subject in options.subjects:
        runs.pop(subject, None)
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds[:1] if options.quick else options.seeds:
            for subject in options.subjects:
                run = SUBJECTS[subject](Path(folder), seed, size)
                del run["metrics"]
                runs.setdefault(subject, []).append(run)
                (_, before, _), (_, after, _) = run["accuracy"][0], run["accuracy"][-1]
                print(f"{subject}, seed {seed}: {before:.1%} → {after:.1%}", flush=True)
                document = {
                    "steps": size.steps,
                    "runs": {name: runs[name] for name in SUBJECTS if name in runs},
                    "machine": describe_machine(["rljob", "torch", "transformers", "ray"]),
                }
                if options.json is not None:
                    options.json.write_text(json.dumps(document) + "\n")
    print("\n\n".join(preferences_parts(document)))


def _known(file: Path | None) -> dict[str, list[dict[str, Any]]]:
    """Runs that the file has, by subject."""
    if file is None or not file.exists():
        return {}
    runs: dict[str, list[dict[str, Any]]] = json.loads(file.read_text())["runs"]
    return runs


if __name__ == "__main__":
    main()
