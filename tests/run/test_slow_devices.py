"""A device that may run a sixth of the time is named, and left where the job says so."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from whole_runs import DriverHere, Finished, run, run_while

pytestmark = [pytest.mark.run]

LONG: dict[str, Any] = {
    "steps": 8,
    "model": {"path": "model"},
    "checkpoint": {},
    "batch__maxResponseLength": 24,
    "data__stop": [],
}


def slow_down(device: int, folder: Path, until: str) -> Callable[[DriverHere], None]:
    """Let the device's process run 10 ms of each 60, until it has ended, or the run's events hold a text."""

    def strike(driver: DriverHere) -> None:
        events = folder / "events.jsonl"
        while not (events.exists() and '"kind":"step"' in events.read_text()):
            assert driver.poll() is None, "the run ended early"
            time.sleep(0.02)
        process = device_processes(driver)[device]
        with contextlib.suppress(psutil.NoSuchProcess):
            while driver.poll() is None and until not in events.read_text():
                process.suspend()
                time.sleep(0.05)
                process.resume()
                time.sleep(0.01)

    return strike


def device_processes(driver: DriverHere) -> list[psutil.Process]:
    found = psutil.Process(driver.pid).children(recursive=True)
    devices = [process for process in found if process.name() == "DeviceWorker"]
    return sorted(devices, key=psutil.Process.create_time)


def weights(run: Finished) -> dict[str, torch.Tensor]:
    """Of the last checkpoint."""
    path = Path(run.of_kind("checkpoint")[-1]["path"])
    return load_file(path / "model" / "model.safetensors")


def test_a_slow_device_is_named_and_told_when_it_is_over(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> None:
    job = job_file(**LONG, stragglers={"steps": 2})
    folder = tmp_path / "run"

    ran = run_while(job, folder, beside=slow_down(1, folder, '"status":"slow"'))

    assert ran.code == 0, ran.output
    told = ran.of_kind("straggler")
    assert (told[0]["devices"], told[0]["status"]) == ([1], "slow")
    assert told[0]["factor"] > 2
    again = [e["status"] for e in told if (e["devices"], e["state"]) == ([1], told[0]["state"])]
    assert again[:2] == ["slow", "over"]
    assert "warning: device 1 (" in ran.output
    assert ran.of_kind("recovery") == []


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, "peers"),
        pytest.param(
            {"update__parallelism": {"data": 2, "zero": 1}}, "checkpoint", marks=pytest.mark.nightly
        ),
    ],
    ids=["from its peer", "from a checkpoint of that step"],
)
def test_a_slow_device_is_started_again_and_no_step_is_lost_and_no_bit(
    job_file: Callable[..., Path],
    untrained_model: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    source: str,
) -> None:
    stragglers = {"steps": 2, "action": "replace"}
    job = job_file(**(LONG | {"steps": 6}), **changes, stragglers=stragglers)
    folder = tmp_path / "slow"
    quiet = run(job, tmp_path / "quiet")

    slow = run_while(job, folder, beside=slow_down(1, folder, '"kind":"recovery"'))

    assert quiet.code == 0, quiet.output
    assert slow.code == 0, slow.output
    left = slow.of_kind("recovery")[0]
    assert (left["devices"], left["slow"], left["source"]) == ([1], True, source)
    assert "rolled_back_to" not in left
    assert [event["step"] for event in slow.of_kind("step")] == [*range(1, 7)]
    statuses = [e["status"] for e in slow.of_kind("straggler") if e["devices"] == [1]]
    assert {*statuses} >= {"slow", "replaced"}
    own = weights(slow)
    assert all(torch.equal(own[name], tensor) for name, tensor in weights(quiet).items())


def test_a_device_that_generates_ahead_is_left_once_nothing_is_under_way(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "flow": {"mode": "async", "maxStaleness": 1},
        "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 2},
        "accelerator": {"type": "emulated", "devicesPerNode": 3},
        "stragglers": {"steps": 2, "action": "replace"},
    }
    folder = tmp_path / "slow"

    slow = run_while(
        job_file(**LONG, **changes), folder, beside=slow_down(2, folder, '"kind":"recovery"')
    )

    assert slow.code == 0, slow.output
    left = slow.of_kind("recovery")[0]
    assert (left["devices"], left["roles"], left["source"]) == ([2], ["rollout"], "none")
    assert [event["step"] for event in slow.of_kind("step")] == [*range(1, LONG["steps"] + 1)]
