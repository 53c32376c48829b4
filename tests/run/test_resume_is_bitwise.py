"""2N steps equal N steps, a kill, and N more, whoever was killed: every bit of the weights, every reward."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from whole_runs import Finished, finish, gone_within, run, start, wait_for_event

pytestmark = [pytest.mark.run]

DRIVER = "driver"
MORTAL = (
    "warehouse-0",
    "ControllerActor",
    "RewardWorker",
    "DeviceWorker",
    DRIVER,
)
STEPS = 20


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


def _kill_one(process: subprocess.Popen[str], role: str) -> None:
    """Kill the run's driver, or the first of its workers that is called so."""
    if role == DRIVER:
        process.kill()
        return
    family = psutil.Process(process.pid).children(recursive=True)
    next(child for child in family if child.name() == role).kill()


def _steps_done(folder: Path) -> int:
    return (folder / "events.jsonl").read_text().count('"kind":"step"')


def _lives_on(process: subprocess.Popen[str], folder: Path) -> bool:
    """Whether the run has done two more steps before it ended."""
    done, deadline = _steps_done(folder), time.monotonic() + 200
    while process.poll() is None and _steps_done(folder) < done + 2:
        assert time.monotonic() < deadline, "the run neither goes on nor ends"
        time.sleep(0.05)
    return process.poll() is None


def test_whoever_dies_the_run_ends_with_the_same_bits_once_resumed(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=STEPS, checkpoint={"every": 2}, dock={"warehouses": 2, "replicas": 2})

    whole = run(job, tmp_path / "whole")
    struck = tmp_path / "struck"
    process = start(job, struck)
    resumed, left = [], []
    for number, role in enumerate(MORTAL):
        wait_for_event(struck, "step", _steps_done(struck) + 1 if number else 2, process)
        _kill_one(process, role)
        if not _lives_on(process, struck):
            resumed.append(role)
            process.wait()
            left += gone_within(process.pid, 30)
            process = start(job, struck, "--resume")
    finished = finish(process, struck)

    assert resumed[-1] == DRIVER and not {"warehouse-0", "ControllerActor"} & {*resumed}
    assert left == []
    assert whole.code == 0, whole.output
    assert finished.code == 0, finished.output
    assert _weights(tmp_path / "whole", STEPS) == _weights(struck, STEPS)
    assert _steps(whole) == _steps(finished)
