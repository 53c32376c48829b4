"""Devices that share a model train through whole runs: they learn what one learns, and go on from where
they stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from whole_runs import Finished, RunsOfAll, killed_copy, run

pytestmark = [pytest.mark.run]


def weights(finished: Finished, step: int) -> Path:
    return finished.folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors"


def losses(finished: Finished) -> list[float]:
    return [event["metrics"]["loss"] for event in finished.of_kind("step")]


SHORT: dict[str, Any] = {"steps": 2, "checkpoint": {}}
SHARING: dict[str, dict[str, Any]] = {
    "tensor": {"accelerator": {"devicesPerNode": 2}, "update__parallelism": {"tensor": 2}},
    "context": {
        "accelerator": {"devicesPerNode": 3},
        "placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 1},
        "update__parallelism": {"context": 2},
    },
    "rows": {
        "accelerator": {"devicesPerNode": 2},
        "update__parallelism": {"zero": 3},
        "batch__microBatchTokens": 40,
        "algorithm": {"name": "grpo", "params": {"klCoefficient": 1e-8}},
    },
    "pipeline": {
        "accelerator": {"devicesPerNode": 2},
        "update__parallelism": {"pipeline": 2, "virtualPipeline": 2},
    },
}


FEWER: dict[str, Any] = {
    "accelerator": {"devicesPerNode": 3},
    "placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 1},
    "update__parallelism": {"pipeline": 2},
    "checkpoint": {"every": 2},
}


@pytest.mark.parametrize("sharing", SHARING.values(), ids=SHARING)
def test_devices_that_share_a_model_learn_what_one_device_learns(
    sharing: dict[str, Any],
    job_file: Callable[..., Path],
    run_of_all: RunsOfAll,
    tmp_path: Path,
) -> None:
    alone = run_of_all(job_file(**SHORT, accelerator={"devicesPerNode": 1}))

    finished = run(job_file(**SHORT, **sharing), tmp_path / "run")

    assert [alone.code, finished.code] == [0, 0], finished.output
    assert losses(finished) == pytest.approx(losses(alone), abs=1e-5)
    expected, found = load_file(weights(alone, 2)), load_file(weights(finished, 2))
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-4, rtol=0, msg=name)


def test_a_checkpoint_goes_on_bit_for_bit_on_as_many_devices_and_as_it_would_have_on_fewer(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    sharing = {
        "accelerator": {"devicesPerNode": 4},
        "update__parallelism": {"tensor": 2, "data": 2, "zero": 1},
        "checkpoint": {"every": 2},
    }

    whole = run(job_file(steps=4, **sharing), tmp_path / "whole")
    killed_copy(whole, 2, tmp_path / "parts")
    then = run(job_file(steps=4, **sharing), tmp_path / "parts", "--resume")
    killed_copy(whole, 2, tmp_path / "fewer")
    fewer = run(job_file(steps=4, **FEWER), tmp_path / "fewer", "--resume")

    assert [whole.code, then.code, fewer.code] == [0, 0, 0], then.output + fewer.output
    assert weights(whole, 4).read_bytes() == weights(then, 4).read_bytes()
    assert losses(whole) == losses(then)
    assert losses(fewer) == pytest.approx(losses(whole), abs=1e-5)
    expected = load_file(weights(whole, 4))
    for name, weight in load_file(weights(fewer, 4)).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-4, rtol=0, msg=name)
