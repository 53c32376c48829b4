"""Runs whose devices hold one layout at a time, as they do unless the job says otherwise, train as those that
hold both, and go on from checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from whole_runs import Finished, run

pytestmark = [pytest.mark.run]

STEPS = 3
JOB: dict[str, Any] = {
    "algorithm": {"name": "grpo", "params": {"klCoefficient": 0.05}},
    "evaluation": {"prompts": 8, "every": STEPS},
    "update__parallelism": {"tensor": 2},
}
STREAM: dict[str, Any] = {**JOB, "resharding": {"strategy": "stream"}}


def weights(finished: Finished) -> dict[str, torch.Tensor]:
    folder = finished.folder / "checkpoints" / f"step-{STEPS:06d}" / "model"
    return load_file(folder / "model.safetensors")


def rewards(finished: Finished) -> list[float]:
    return [event["metrics"]["reward/mean"] for event in finished.of_kind("step")]


def test_a_run_that_swaps_ends_with_the_weights_of_one_that_does_not_also_when_it_goes_on(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    both = run(job_file(steps=STEPS, checkpoint={"every": STEPS}, **STREAM), tmp_path / "both")
    run(job_file(steps=2, checkpoint={"every": 1}, **JOB), tmp_path / "one")
    one = run(job_file(steps=STEPS, checkpoint={"every": 1}, **JOB), tmp_path / "one", "--resume")

    assert [both.code, one.code] == [0, 0], one.output
    assert rewards(one) == rewards(both)
    expected = weights(both)
    for name, weight in weights(one).items():
        torch.testing.assert_close(weight, expected[name], atol=1e-6, rtol=0, msg=name)
    reshards = one.of_kind("reshard")
    assert {event["step"] for event in reshards} == set(range(STEPS + 1))
    assert all(event["kept_bytes"] == 0 < event["released_bytes"] for event in reshards)
    assert all(event["peak_bytes"] <= event["bound_bytes"] for event in reshards)
    assert both.of_kind("reshard") == []
