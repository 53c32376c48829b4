"""A run ends with the same bits, weights and rewards, whoever of its processes is killed: workers come again,
and after its driver it is resumed."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from whole_runs import (
    WAIT_SECONDS,
    Driver,
    Finished,
    gone_within,
    run,
    run_while,
    start,
    steps_done,
    wait_for_event,
)

pytestmark = [pytest.mark.run]

WORKERS = ("warehouse-0", "controller-update", "RewardWorker", "DeviceWorker")
STEPS = 20
NAME_LENGTH = 15
"""Of a process, on Linux."""


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


def _kill(driver: Driver, role: str) -> None:
    """The first of its workers that is called so."""
    family = psutil.Process(driver.pid).children(recursive=True)
    next(child for child in family if child.name() == role[:NAME_LENGTH]).kill()


def _lives_on(driver: Driver, folder: Path) -> bool:
    """Whether the run has done another step before it ended."""
    done, deadline = steps_done(folder), time.monotonic() + WAIT_SECONDS
    while driver.poll() is None and steps_done(folder) < done + 1:
        assert time.monotonic() < deadline, "the run neither goes on nor ends"
        time.sleep(0.05)
    return driver.poll() is None


def test_whoever_dies_the_run_ends_with_the_same_bits(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=STEPS, checkpoint={"every": 2}, dock={"warehouses": 2, "replicas": 2})
    struck = tmp_path / "struck"

    def strike(driver: Driver) -> None:
        for role in WORKERS:
            wait_for_event(struck, "step", steps_done(struck) + 1, driver)
            _kill(driver, role)
            assert _lives_on(driver, struck), role

    whole = run(job, tmp_path / "whole")
    process = start(job, struck)
    wait_for_event(struck, "step", 2, process)
    process.kill()
    process.wait()
    left = gone_within(process.pid, 30)
    finished = run_while(job, struck, "--resume", beside=strike)

    assert left == []
    assert whole.code == 0, whole.output
    assert finished.code == 0, finished.output
    assert _weights(tmp_path / "whole", STEPS) == _weights(struck, STEPS)
    assert _steps(whole) == _steps(finished)
