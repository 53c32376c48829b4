"""2N steps equal N steps, a kill, and N more: every bit of the weights, every reward."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_runs import Finished, gone_within, run, start, wait_for_event

pytestmark = [pytest.mark.ray]


def _steps(finished: Finished) -> dict[int, dict[str, Any]]:
    timed = ("tokens_per_second", "tps_eq5", "eta_seconds", "memory", "seconds")
    return {
        event["step"]: {
            name: value
            for name, value in event["metrics"].items()
            if not any(word in name for word in timed)
        }
        for event in finished.of_kind("step")
    }


def _weights(folder: Path, step: int) -> bytes:
    return (
        folder / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors"
    ).read_bytes()


def test_a_killed_run_leaves_no_processes_and_ends_with_the_same_bits_once_resumed(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file()

    whole = run(job, tmp_path / "whole")
    killed = start(job, tmp_path / "killed")
    wait_for_event(tmp_path / "killed", "step", 4, killed)
    killed.kill()
    killed.wait()
    left = gone_within(killed.pid, 30)
    resumed = run(job, tmp_path / "killed", "--resume")

    assert left == []
    assert whole.code == 0, whole.output
    assert resumed.code == 0, resumed.output
    assert _weights(tmp_path / "whole", 6) == _weights(tmp_path / "killed", 6)
    assert _steps(whole) == _steps(resumed)
