"""A run whose KV cache has room for few of a step's sequences at a time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import Finished, RunsOfAll, run

pytestmark = [pytest.mark.run]


def metric(finished: Finished, name: str) -> list[float]:
    return [event["metrics"][name] for event in finished.of_kind("step")]


def test_a_run_with_a_small_cache_learns_from_the_same_samples(
    job_file: Callable[..., Path], run_of_all: RunsOfAll, tmp_path: Path
) -> None:
    job = {"steps": 2, "checkpoint": {}, "accelerator": {"devicesPerNode": 1}}
    plain = run_of_all(job_file(**job))
    small = run(
        job_file(rollout__kvCacheMemory="200k", flow__mode="sync", **job), tmp_path / "small"
    )

    assert [plain.code, small.code] == [0, 0], small.output
    for name in ("loss", "response_length/mean", "gradient_norm"):
        assert metric(small, name) == pytest.approx(metric(plain, name), abs=1e-4)
