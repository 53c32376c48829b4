"""Whole runs of the quickstart in one precision each. Called by `precision.py`."""

import copy
import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import yaml

from benchmarks import ROOT
from benchmarks.engines.precision_sides import PRECISIONS, Precision
from benchmarks.support.runs import quarters, steps_of
from rljob_api.check.load import read_job
from rljob_runtime.models.export import find_model
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
RUNS = PRECISIONS | {"full precision, epsilon 1e-7": Precision(epsilon=1e-7)}
"""The last changes a step by a thousandth: how far apart runs come that learn the same."""


def learn(name: str, folder: Path, *, steps: int, seed: int, quick: bool) -> dict[str, Any]:
    """One run with this precision: accuracy on held-out words, and means of each quarter of its steps."""
    job = yaml.safe_load(QUICKSTART.read_text())
    spec = copy.deepcopy(job["spec"])
    spec |= {"steps": steps, "seed": seed}
    spec["evaluation"]["every"] = steps
    if quick:
        spec["batch"]["globalBatchSize"] = 8
        spec["evaluation"]["prompts"] = 64
        spec["model"]["warmup"]["targetAccuracy"] = 0.2
        spec["data"]["reasoningGym"]["params"]["max_word_len"] = 4
    RUNS[name].apply(spec)
    job |= {"spec": spec}
    run = run_name(name, seed)
    done = [event["metrics"] for event in steps_of(job, folder, run)]
    events = map(json.loads, (folder / run / "events.jsonl").read_text().splitlines())
    checks = [event for event in events if event["kind"] == "evaluation"]
    return {
        "seed": seed,
        "steps": steps,
        "before": checks[0]["accuracy"],
        "after": checks[-1]["accuracy"],
        "stderr": checks[-1]["stderr"],
        "expected": expected_accuracy(job, find_model(folder / run)),
        "reward": quarters([step["reward/mean"] for step in done]),
        "gradient_norm": mean(step["gradient_norm"] for step in done),
        "kl": mean(step["mismatch/kl"] for step in done),
        "max": max(step["mismatch/max"] for step in done),
    }


def run_name(name: str, seed: int) -> str:
    """Folder of a run."""
    return f"{name.replace(',', '').replace(' ', '-')}-{seed}"


def expected_accuracy(manifest: dict[str, Any], model: Path) -> float:
    """Of samples at temperature 1 for the job's held-out words: the mean probability of the right answers,
    in float32 and without the chance of drawing."""
    job, tokenizer = read_job(manifest), ByteTokenizer()
    assert job.spec.evaluation is not None, "the quickstart evaluates"
    words = PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=tokenizer,
        seed=job.spec.seed,
        base_dir=QUICKSTART.parent,
        held_out=job.spec.evaluation.prompts,
    ).heldout()
    batch = SampleBatch(
        prompts=[torch.tensor(word.token_ids) for word in words],
        group_of_B=torch.arange(len(words)),
        responses=[torch.tensor([*tokenizer.continuation(w.answer), EOS_ID]) for w in words],
    )
    decoder = load_decoder(model, dtype=torch.float32)
    with torch.no_grad():
        logprobs_T = decoder.logprobs(batch, temperature=1.0).logprobs_T
    answers_B = torch.zeros(len(words)).index_add(0, batch.sample_of_T(), logprobs_T)
    return float(answers_B.exp().mean())
