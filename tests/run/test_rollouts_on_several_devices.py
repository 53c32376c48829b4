"""Devices that share a model in generation through whole runs: the samples, and so the weights, are those of
devices that hold all of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import FAMILIES
from safetensors.torch import load_file
from whole_runs import Finished, run

from rljob_runtime.task.tokenizer import BYTE_VOCABULARY, save_byte_tokenizer

pytestmark = [pytest.mark.run]

STEPS = 3
SHORT: dict[str, Any] = {
    "steps": STEPS,
    "checkpoint": {"every": STEPS},
    "evaluation": {"prompts": 8, "every": STEPS},
}
SEPARATED: dict[str, Any] = {
    "accelerator": {"devicesPerNode": 3},
    "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 2},
}


def weights(finished: Finished) -> dict[str, torch.Tensor]:
    folder = finished.folder / "checkpoints" / f"step-{STEPS:06d}" / "model"
    return load_file(folder / "model.safetensors")


def of_steps(finished: Finished, name: str) -> list[float]:
    return [event["metrics"][name] for event in finished.of_kind("step")]


def assert_same(found: Finished, expected: Finished) -> None:
    """The same samples, and weights that differ by rounding."""
    assert found.code == 0, found.output
    for exact in ("reward/mean", "response_length/mean"):
        assert of_steps(found, exact) == of_steps(expected, exact)
    others = weights(expected)
    for name, weight in weights(found).items():
        torch.testing.assert_close(weight, others[name], atol=1e-5, rtol=0, msg=name)
    accuracy = [[event["accuracy"] for event in r.of_kind("evaluation")] for r in (found, expected)]
    assert accuracy[0] == accuracy[1] != []


def test_devices_that_share_a_model_generate_what_whole_models_do(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    whole = run(job_file(**SHORT), tmp_path / "whole")
    tensor = run(
        job_file(**SHORT, rollout__parallelism={"tensor": 2}),
        tmp_path / "tensor",
    )
    pipeline = run(
        job_file(**SHORT, **SEPARATED, rollout__parallelism={"pipeline": 2}),
        tmp_path / "pipeline",
    )

    assert whole.code == 0, whole.output
    assert_same(tensor, whole)
    assert_same(pipeline, whole)


def test_replicas_that_share_experts_run_ahead_in_parts_and_go_on_from_a_checkpoint(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    sizes = {"vocab_size": BYTE_VOCABULARY}
    FAMILIES["qwen3-moe"](**sizes).save_pretrained(tmp_path / "model")
    save_byte_tokenizer(tmp_path / "model")
    job: dict[str, Any] = {
        **SEPARATED,
        "model": {"path": str(tmp_path / "model")},
        "rewards": [{"name": "letters", "type": "format", "pattern": {"pattern": "[a-z]"}}],
        "flow": {"mode": "async", "partialRollout": {"budgetTokens": 3}},
        "rollout__parallelism": {"expert": 2},
        "checkpoint": {"every": 2},
    }

    first = run(job_file(steps=2, **job), tmp_path / "run")
    then = run(job_file(steps=4, **job), tmp_path / "run", "--resume")

    assert [first.code, then.code] == [0, 0], then.output
    assert [event["step"] for event in then.of_kind("step")] == [1, 2, 3, 4]
    assert of_steps(then, "partial_rollout/going_on")[0] > 0
