"""Whole runs of the quickstart in one precision each. Called by `precision.py`."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import yaml

from benchmarks import ROOT
from benchmarks.engines.precision_sides import FULL, PRECISIONS, Precision
from benchmarks.support.beside import Run
from benchmarks.support.models import SIZES
from benchmarks.support.runs import steps_of
from rljob_api.check.load import read_job
from rljob_runtime.models.export import find_model
from rljob_runtime.models.families import hf_config
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.tiny_recipe import Recipe
from rljob_runtime.models.warmup import warm_up
from rljob_runtime.models.weights import save_hf
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer, save_byte_tokenizer

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
RUNS = PRECISIONS | {"full precision, epsilon 1e-7": Precision(epsilon=1e-7)}
"""The last changes a step by a thousandth: how far apart runs come that learn the same."""
TINY = "0.8M"
WIDE_RATE = 1e-4
"""Of the update of models wider than `tiny`."""


def learn(settings: Mapping[str, Any], folder: Path, *, models: Path, quick: bool) -> Run:
    """One run of the quickstart: what is held out before and after, and the reward of each step.

    settings: `size`, `precision`, `seed`, `steps`. models: where warmed-up models are kept.
    """
    size, seed, steps = settings["size"], settings["seed"], settings["steps"]
    job = job_of(settings["precision"], seed=seed, steps=steps, quick=quick)
    if size != TINY:
        job["spec"]["model"] = {"path": str(warmed_up(size, models))}
        job["spec"]["update"]["optimizer"]["learningRate"] = WIDE_RATE
    name = "-".join(map(str, settings.values())).replace(",", "").replace(" ", "-")
    done = [event["metrics"] for event in steps_of(job, folder, name)]
    events = map(json.loads, (folder / name / "events.jsonl").read_text().splitlines())
    checks = [event for event in events if event["kind"] == "evaluation"]
    return {
        "before": checks[0]["accuracy"],
        "after": checks[-1]["accuracy"],
        "expected": expected_accuracy(job, find_model(folder / name)),
        "reward": [round(step["reward/mean"], 4) for step in done],
        "gradient_norm": mean(step["gradient_norm"] for step in done),
        "kl": mean(step["mismatch/kl"] for step in done),
        "max": max(step["mismatch/max"] for step in done),
    }


def job_of(precision: str, *, seed: int, steps: int, quick: bool) -> dict[str, Any]:
    """The quickstart in this precision, with evaluations before and after."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "seed": seed}
    spec["evaluation"]["every"] = steps
    if quick:
        spec["batch"]["globalBatchSize"] = 8
        spec["evaluation"]["prompts"] = 64
        spec["model"]["warmup"]["targetAccuracy"] = 0.2
        spec["data"]["reasoningGym"]["params"]["max_word_len"] = 4
    RUNS[precision].apply(spec)
    return job


def warmed_up(size: str, models: Path, *, quick: bool = False) -> Path:
    """A model of that size that spells every other held-out word of the quickstart's, made where it is not
    there; the same for all seeds of runs."""
    folder = models / f"{size}{'-quick' * quick}"
    if not (folder / "config.json").is_file():
        config = hf_config(SIZES[size]) | {"eos_token_id": EOS_ID}
        draft = models / f".{folder.name}"
        draft.mkdir(parents=True, exist_ok=True)
        (draft / "config.json").write_text(json.dumps(config))
        save_byte_tokenizer(draft)
        decoder = warm_up(
            read_job(job_of(FULL, seed=0, steps=1, quick=quick)),
            draft,
            base_dir=QUICKSTART.parent,
            progress=partial(print, flush=True),
            recipe=Recipe() if size == TINY else Recipe(learning_rate=1e-3),
        )
        save_hf(decoder.named_hf_parameters(), source=draft, folder=folder, config=config)
    return folder


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
