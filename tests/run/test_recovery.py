"""A device that dies costs the step that was cut: others take over its part, and the run goes on."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from whole_runs import (
    SMALL_JOB,
    DriverHere,
    Finished,
    processes,
    run,
    run_while,
    wait_for_event,
)

from rljob_runtime.children.owned_folders import PREFIX
from rljob_runtime.worker.second_copies import DESCRIPTION_FILE

pytestmark = [pytest.mark.run]


def assert_alike(found: Finished, expected: Finished) -> None:
    """The last checkpoints have the same weights, bit for bit."""
    last, steps = expected.of_kind("checkpoint")[-1]["step"], len(expected.of_kind("step"))
    assert {event["step"] for event in found.of_kind("step")} == {*range(1, steps + 1)}
    file = f"checkpoints/step-{last:06d}/model/model.safetensors"
    weights, own = load_file(found.folder / file), load_file(expected.folder / file)
    assert weights.keys() == own.keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in own.items())


def test_a_device_that_dies_is_replaced_with_the_state_of_its_peer(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=6, checkpoint={})
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 2, driver)
        processes(driver, "DeviceWorker")[1].kill()
        wait_for_event(tmp_path / "struck", "recovery", 1, driver)
        wait_for_event(tmp_path / "struck", "step", 4, driver)
        processes(driver, "DeviceWorker")[0].kill()

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert quiet.code == 0, quiet.output
    assert struck.code == 0, struck.output
    told = struck.of_kind("recovery")
    assert [event["source"] for event in told] == ["peers", "peers"]
    assert_alike(struck, quiet)


def test_without_a_peer_the_last_checkpoint_is_taken_and_processes_beside_devices_come_again(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=6, checkpoint={"every": 2}, update__parallelism={"data": 2, "zero": 1})
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 3, driver)
        for process in [*processes(driver, "PromptFeeder"), *processes(driver, "RewardWorker")]:
            process.kill()
        processes(driver, "DeviceWorker")[0].kill()

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert struck.code == 0, struck.output
    (told,) = struck.of_kind("recovery")
    assert (told["devices"], told["others"]) == ([0], ["feeder", "reward-0"])
    assert (told["source"], told["step"] % 2) == ("checkpoint", 0)
    assert_alike(struck, quiet)


HELD_REWARD = """
import time
from pathlib import Path

def reward(prompt, response, answer):
    \"\"\"Waits while it is held, so that no update begins.\"\"\"
    here = Path(__file__)
    while here.with_name("hold").exists():
        here.with_name("held").touch()
        time.sleep(0.02)
    return 0.0
"""
NEXT_RANK = {"redundancy": "peer"}
THIS_MACHINE = {"redundancy": "host"}


@pytest.mark.parametrize(
    ("update", "killed"),
    [
        ({**NEXT_RANK, "parallelism": {"data": 2, "zero": 1}}, [1]),
        pytest.param(
            {**NEXT_RANK, "parallelism": {"data": 2, "zero": 3}, "offload": "optimizer"},
            [1],
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {**NEXT_RANK, "parallelism": {"data": 1, "tensor": 2}}, [0], marks=pytest.mark.nightly
        ),
        pytest.param(
            {**NEXT_RANK, "parallelism": {"data": 2, "zero": 1}, "engine": "megatron"},
            [0],
            marks=pytest.mark.nightly,
        ),
        ({**THIS_MACHINE, "parallelism": {"data": 1, "tensor": 2}}, [0, 1]),
    ],
    ids=["zero-1", "zero-3", "tensor", "megatron-zero-1", "both-on-their-host"],
)
def test_a_device_that_alone_held_its_part_takes_the_second_copy_of_it(
    job_file: Callable[..., Path], tmp_path: Path, update: dict[str, Any], killed: list[int]
) -> None:
    (tmp_path / "held.py").write_text(HELD_REWARD)
    held = {"name": "held", "type": "python", "weight": 0.0, "python": {"path": "held.py"}}
    rewards = [*SMALL_JOB["spec"]["rewards"], held]
    job = job_file(steps=5, checkpoint={}, update=update, rewards=rewards)
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 2, driver)
        (tmp_path / "hold").touch()
        while not (tmp_path / "held").exists():
            assert driver.poll() is None, "the run ended early"
            time.sleep(0.02)
        devices = processes(driver, "DeviceWorker")
        for number in killed:
            devices[number].kill()
        (tmp_path / "hold").unlink()

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert quiet.code == 0, quiet.output
    assert struck.code == 0, struck.output
    (told,) = struck.of_kind("recovery")
    assert (told["devices"], told["source"]) == (killed, "copies")
    assert told["step"] >= 2
    assert_alike(struck, quiet)


def test_all_step_back_where_the_last_copy_is_not_whole(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    update = {**THIS_MACHINE, "parallelism": {"data": 1, "tensor": 2}}
    job = job_file(steps=5, checkpoint={}, update=update)
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 3, driver)
        device = processes(driver, "DeviceWorker")[1]
        device.suspend()
        mapped = (Path(each.path) for each in device.memory_maps())
        places = {file.parent for file in mapped if PREFIX in str(file)}
        whole = {
            json.loads((p / DESCRIPTION_FILE).read_text())["step"]: p / DESCRIPTION_FILE
            for p in places
        }
        whole[max(whole)].unlink()
        device.kill()

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert struck.code == 0, struck.output
    (told,) = struck.of_kind("recovery")
    assert told["source"] == "copies"
    assert told["rolled_back_to"] == told["step"] >= 2
    assert_alike(struck, quiet)


def test_a_device_that_generates_alone_is_replaced_and_the_batch_is_generated_again(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    separated = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    job = job_file(steps=6, checkpoint={}, placement=separated)
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 2, driver)
        processes(driver, "DeviceWorker")[1].kill()

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert struck.code == 0, struck.output
    (told,) = struck.of_kind("recovery")
    assert (told["devices"], told["source"]) == ([1], "none")
    assert_alike(struck, quiet)


def test_a_device_that_always_dies_ends_the_run(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=40, checkpoint={})

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 1, driver)
        while driver.poll() is None:
            for process in processes(driver, "DeviceWorker")[:1]:
                process.kill()
            time.sleep(0.05)

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert struck.code == 1, struck.output
    assert "died" in struck.of_kind("run_finished")[-1]["message"]
    assert len(struck.of_kind("recovery")) <= 3
