"""Whole runs in bfloat16 with moments in 8 bits: they resume bit for bit, and separated devices take part."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner
from whole_runs import Finished, killed_copy, run

from rljob_runtime.cli.main import app

pytestmark = [pytest.mark.run]
NARROW: dict[str, Any] = {
    "update": {
        "dtype": "bfloat16",
        "optimizer": {"learningRate": 3e-4, "momentsDtype": "float8"},
    },
    "rollout": {"dtype": "bfloat16"},
    "checkpoint": {"every": 2},
    "batch__globalBatchSize": 4,  # a processor's bfloat16 is slow
}


def checkpoint(finished: Finished, step: int) -> Path:
    return finished.folder / "checkpoints" / f"step-{step:06d}"


def weights(finished: Finished, step: int) -> Path:
    return checkpoint(finished, step) / "model" / "model.safetensors"


def metric(finished: Finished, name: str) -> list[float]:
    return [event["metrics"][name] for event in finished.of_kind("step")]


def test_a_run_in_low_precision_goes_on_bit_for_bit_and_is_exported_as_it_trained(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    whole = run(job_file(steps=4, **NARROW), tmp_path / "whole")
    killed_copy(whole, 2, tmp_path / "parts")
    then = run(job_file(steps=4, **NARROW), tmp_path / "parts", "--resume")
    exported = CliRunner().invoke(app, ["export", str(tmp_path / "whole"), str(tmp_path / "out")])

    assert [whole.code, then.code] == [0, 0], then.output
    assert exported.exit_code == 0, exported.output
    assert weights(whole, 4).read_bytes() == weights(then, 4).read_bytes()
    assert metric(whole, "loss") == metric(then, "loss")
    state = torch.load(checkpoint(whole, 4) / "optimizer.pt", weights_only=True)
    out = load_file(tmp_path / "out" / "model.safetensors")
    for name, weight in out.items():
        assert weight.dtype == torch.bfloat16
        assert weight.equal(state[f"main.{name}"].bfloat16()), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert 0 < max(metric(whole, "mismatch/kl")) < 0.01
    moved = load_file(weights(whole, 2))
    assert any(not weight.equal(moved[name]) for name, weight in out.items())


def test_separated_devices_that_share_out_weights_go_on_bit_for_bit(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """ZeRO 3: rows are the main weights, gathered for the rollout's device in its type."""
    sharing: dict[str, Any] = NARROW | {
        "accelerator": {"devicesPerNode": 3},
        "placement": {"mode": "separated", "updateDevices": 2, "rolloutDevices": 1},
        "update__parallelism": {"data": 2, "zero": 3},
    }

    whole = run(job_file(steps=4, **sharing), tmp_path / "whole")
    killed_copy(whole, 2, tmp_path / "parts")
    then = run(job_file(steps=4, **sharing), tmp_path / "parts", "--resume")

    assert [whole.code, then.code] == [0, 0], then.output
    assert weights(whole, 4).read_bytes() == weights(then, 4).read_bytes()
    assert metric(whole, "loss") == metric(then, "loss")
    assert metric(whole, "skipped") == [0] * 4
    assert all(0 < value < 0.01 for value in metric(whole, "mismatch/kl"))
    start, end = load_file(weights(whole, 2)), load_file(weights(whole, 4))
    assert all(weight.dtype == torch.float32 for weight in end.values())
    assert any(not weight.equal(start[name]) for name, weight in end.items())
