"""A run whose policy Megatron Core trains: as the engine `torch` does, and resumed with the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_runs import run, start, wait_for_event

pytestmark = [pytest.mark.run]
STEPS = 4
TENSOR: dict[str, Any] = {"parallelism": {"tensor": 2}}


def _weights(folder: Path) -> bytes:
    file = folder / "checkpoints" / f"step-{STEPS:06d}" / "model" / "model.safetensors"
    return file.read_bytes()


@pytest.mark.nightly
def test_a_run_on_megatron_learns_what_torch_learns_resumes_with_the_same_bits_and_moves(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    settings = {"steps": STEPS, "checkpoint": {"every": 2}}
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    torch = run(job_file(**settings, update=TENSOR), tmp_path / "torch")
    job = job_file(**settings, update={"engine": "megatron", **TENSOR})
    finished = run(job, whole)
    process = start(job, cut)
    wait_for_event(cut, "step", 3, process)
    process.kill()
    process.wait()
    resumed = run(job, cut, "--resume")

    assert (finished.code, torch.code, resumed.code) == (0, 0, 0), resumed.output
    assert _weights(whole) == _weights(cut)
    for own, other in zip(finished.of_kind("reshard"), torch.of_kind("reshard"), strict=True):
        assert own["kept_bytes"] == 0 < own["released_bytes"] == other["released_bytes"]
        assert own["received_bytes"] == other["received_bytes"]
        assert own["peak_bytes"] <= own["bound_bytes"]
    for own, other in zip(finished.of_kind("step"), torch.of_kind("step"), strict=True):
        for name in ("loss", "gradient_norm", "reward/mean", "entropy"):
            assert own["metrics"][name] == pytest.approx(other["metrics"][name], rel=1e-3), name

    shared = {"parallelism": {"data": 2, "zero": 1}}
    longer = job_file(**settings | {"steps": STEPS + 2}, update={"engine": "megatron", **shared})
    moved = run(longer, whole, "--resume")

    assert moved.code == 0, moved.output
    assert [event["step"] for event in moved.of_kind("step")][-2:] == [STEPS + 1, STEPS + 2]
