"""A device that trains dies and has no place: the others train on what it would have, until it is back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import withheld_places
from safetensors.torch import load_file
from whole_runs import (
    SMALL_JOB,
    DriverHere,
    Finished,
    processes,
    run,
    run_while,
    steps_done,
    wait_for_event,
)
from withheld_places import ANSWERED, WorkersOnNodes, find, lose

pytestmark = [pytest.mark.run]

ROUNDING = 1e-6
"""Of a weight: sums of floats in another order."""


@pytest.fixture(autouse=True)
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each device is on a node of its own, and is not waited for long."""
    monkeypatch.setattr("rljob_runtime.processes.session.LocalWorkers", WorkersOnNodes)
    for each in ("left_out", "lost_rollouts"):
        monkeypatch.setattr(f"rljob_runtime.run.{each}.PLACE_SECONDS", 0.5)
    yield
    withheld_places.LOST.clear()


def elastic(training: int, least: int, **changes: Any) -> dict[str, Any]:
    """So many devices train, one generates, each on a node."""
    return {
        "accelerator": {"type": "emulated", "devicesPerNode": 1},
        "placement": {"mode": "separated", "updateDevices": training, "rolloutDevices": 1},
        "elastic": {"update": {"minReplicas": least}},
        "checkpoint": {},
        **changes,
    }


HELD_REWARD = """
import time
from pathlib import Path

def reward(prompt, response, answer):
    \"\"\"Waits while it is held, so that no step ends.\"\"\"
    while Path(__file__).with_name("hold").exists():
        time.sleep(0.02)
    return 0.0
"""
BACK_SECONDS = 120
"""Until the process of a device whose node is there again has started."""


def replicas(run: Finished) -> list[tuple[int, list[int]]]:
    """How many trained, and who was left out, as it changed."""
    return [(event["live"], event["left_out"]) for event in run.of_kind("replicas")]


def gap(found: Finished, expected: Finished) -> float:
    """Between the weights of the last checkpoints, the widest."""
    last = expected.of_kind("checkpoint")[-1]["step"]
    file = f"checkpoints/step-{last:06d}/model/model.safetensors"
    own, weights = load_file(found.folder / file), load_file(expected.folder / file)
    assert own.keys() == weights.keys()
    return max(float((own[name] - weights[name]).abs().max()) for name in weights)


def test_devices_without_a_place_are_left_out_and_come_back_and_the_weights_are_the_same(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "held.py").write_text(HELD_REWARD)
    held = {"name": "held", "type": "python", "weight": 0.0, "python": {"path": "held.py"}}
    rewards = [*SMALL_JOB["spec"]["rewards"], held]
    sizes = elastic(2, 1, rewards=rewards)
    sizes["placement"]["rolloutDevices"] = 2
    job, folder = job_file(steps=12, **sizes), tmp_path / "struck"
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 2, driver)
        devices = processes(driver, "DeviceWorker")
        for number in (0, 3):
            lose(number)
            devices[number].kill()
        wait_for_event(folder, "replicas", 2, driver)
        done = steps_done(folder)
        wait_for_event(folder, "step", done + 2, driver)
        (tmp_path / "hold").touch()
        for number in (0, 3):
            find(number)
        came = [ANSWERED[number].wait(BACK_SECONDS) for number in (0, 3)]
        (tmp_path / "hold").unlink()
        assert all(came)

    struck = run_while(job, folder, beside=strike)

    assert quiet.code == 0, quiet.output
    assert struck.code == 0, struck.output
    assert replicas(quiet) == [(2, [])]
    assert replicas(struck) == [(2, []), (1, [0]), (2, [])]
    (told,) = struck.of_kind("recovery")
    assert (told["devices"], told["left_out"], told["source"]) == ([0, 3], [0, 3], "peers")
    resized = [(event["from"], event["to"], event["lost"]) for event in struck.of_kind("resize")]
    assert resized == [(2, 1, [3]), (1, 2, [])]
    assert [event["step"] for event in struck.of_kind("step")] == [*range(1, 13)]
    away, back = (event["step"] for event in struck.of_kind("replicas")[1:])
    assert back - away >= 2
    assert 0 < gap(struck, quiet) < ROUNDING


@pytest.mark.nightly
def test_no_fewer_train_than_the_job_says_and_unequal_shares_give_the_same_weights(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    sizes = {"batch__globalBatchSize": 6, "batch__miniBatchSize": 3}
    job = job_file(steps=12, **elastic(3, 2, **sizes))
    folder, quiet = tmp_path / "struck", run(job, tmp_path / "quiet")
    steps = []

    def strike(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 2, driver)
        lose(1)
        processes(driver, "DeviceWorker")[1].kill()
        wait_for_event(folder, "replicas", 2, driver)
        done = steps_done(folder)
        wait_for_event(folder, "step", done + 2, driver)
        lose(0)
        processes(driver, "DeviceWorker")[0].kill()
        time.sleep(3.0)  # many times as long as a device is waited for where enough live
        steps.append(steps_done(folder))
        time.sleep(1.0)
        steps.append(steps_done(folder))
        find(0)

    struck = run_while(job, folder, beside=strike)

    assert struck.code == 0, struck.output
    assert steps[0] == steps[1]  # one is too few
    (warned,) = struck.of_kind("warning")
    assert warned["message"].startswith("device 0: no place since")
    assert replicas(struck) == [(3, []), (2, [1])]
    told = [(event["devices"], event["left_out"]) for event in struck.of_kind("recovery")]
    assert told == [([1], [1]), ([0], [])]
    assert [event["step"] for event in struck.of_kind("step")] == [*range(1, 13)]
    rows = {
        (event["device"], event["role"])
        for event in struck.of_kind("phase")
        if event["name"] == "update" and event["step"] == 12
    }
    assert rows == {(0, "update"), (2, "update")}
    assert 0 < gap(struck, quiet) < ROUNDING
