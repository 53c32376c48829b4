"""The built-in `tiny`: made on the job's task, the same each time, and only once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.check.load import read_job
from rljob_api.spec.rljob import RLJob
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.tiny import make_tiny
from rljob_runtime.models.tiny_recipe import Recipe
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.tokenizer import ByteTokenizer, load_tokenizer

SHORT = Recipe(batch_size=8, check_every=2)
MAX_PARAMETERS = 1_000_000


def job(*, seed: int = 0, target: float = 1e-9, max_steps: int = 2) -> RLJob:
    spec: dict[str, Any] = {
        "steps": 1,
        "seed": seed,
        "model": {
            "builtin": "tiny",
            "warmup": {"targetAccuracy": target, "maxSteps": max_steps},
        },
        "data": {
            "reasoningGym": {
                "dataset": "spell_backward",
                "params": {"min_word_len": 3, "max_word_len": 3},
            },
            "template": "{word}=",
        },
        "rewards": [{"name": "correct", "type": "dataset"}],
        "batch": {
            "globalBatchSize": 2,
            "samplesPerPrompt": 2,
            "maxPromptLength": 16,
            "maxResponseLength": 8,
        },
        "evaluation": {"prompts": 16},
    }
    return read_job(
        {
            "apiVersion": "rljob.io/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "tiny"},
            "spec": spec,
        }
    )


def make(
    wanted: RLJob, cache: Path, lines: list[str] | None = None, recipe: Recipe = SHORT
) -> Path:
    said: list[str] = [] if lines is None else lines
    return make_tiny(wanted, base_dir=Path(), cache_dir=cache, progress=said.append, recipe=recipe)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_the_same_job_makes_the_same_bits(tmp_path: Path) -> None:
    first, second = (weights(make(job(), tmp_path / name)) for name in ("a", "b"))

    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sum(tensor.numel() for tensor in first.values()) < MAX_PARAMETERS


def test_a_second_job_finds_the_model_made(tmp_path: Path) -> None:
    lines: list[str] = []

    first = make(job(), tmp_path, lines)
    said = len(lines)
    second = make(job(), tmp_path, lines)

    assert first == second
    assert said == len(lines) > 0


def test_another_seed_or_target_makes_another_model(tmp_path: Path) -> None:
    folders = {
        make(job(), tmp_path),
        make(job(seed=1), tmp_path),
        make(job(max_steps=4), tmp_path),
    }

    assert len(folders) == 3


def test_the_directory_loads_as_a_policy_with_its_tokenizer(tmp_path: Path) -> None:
    folder = make(job(), tmp_path)
    tokenizer = load_tokenizer(folder)
    batch = SampleBatch(
        prompts=[torch.tensor(tokenizer.encode("cab="))],
        group_of_B=torch.tensor([0]),
        responses=[torch.tensor([*tokenizer.continuation("bac"), *tokenizer.eos_ids])],
    )

    logprobs_T = load_policy(folder, dtype=torch.float32).logprobs(batch, temperature=1).logprobs_T

    assert isinstance(tokenizer, ByteTokenizer)
    assert logprobs_T.shape == (4,)
    assert bool((logprobs_T < 0).all())


def test_a_warm_up_that_learns_nothing_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"after 2 steps of warm-up.*raise maxSteps"):
        make(job(target=0.5), tmp_path)

    assert not list(tmp_path.glob("tiny/*/config.json"))
