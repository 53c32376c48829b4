"""Whole runs whose generation runs ahead of the update, through evaluations, losses and interrupts."""

import json
import math
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_port
from whole_runs import (
    DriverHere,
    Finished,
    kill_warehouses,
    run,
    run_while,
    wait_for_event,
)

pytestmark = [pytest.mark.run]

BOUND = 2
AHEAD = {
    "checkpoint": {},
    "accelerator": {"type": "emulated", "devicesPerNode": 2},
    "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
    "flow": {"mode": "async", "maxStaleness": BOUND},
    "batch__microBatchSize": 2,
}

PACE = '''
import os, time
def reward(prompt, response, answer):
    """Slow steps until the test has seen what it came for."""
    if not os.path.exists({free!r}):
        time.sleep(1 / 32)
    return 0.0
'''


def ages(finished: Finished) -> set[int]:
    """How many versions behind the samples of all steps were; each step has 32."""
    found = [event["staleness"] for event in finished.of_kind("step")]
    assert all(sum(rows.values()) == 32 for rows in found)
    return {int(age) for rows in found for age in rows}


def test_a_run_ahead_outlives_its_warehouse_and_stays_within_the_bound(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job, folder = (
        job_file(steps=16, evaluation={"prompts": 8, "every": 8}, **AHEAD),
        tmp_path / "run",
    )

    def strike(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 3, driver)
        kill_warehouses(driver)  # never empty: a batch is ahead

    finished = run_while(job, folder, beside=strike)

    assert finished.code == 0, finished.output
    assert [event["step"] for event in finished.of_kind("step")] == [*range(1, 17)]
    assert max(ages(finished)) in (1, BOUND)
    assert [event["step"] for event in finished.of_kind("evaluation")] == [0, 8, 16]
    assert any("starts over" in event["message"] for event in finished.of_kind("warning"))
    again = [event for event in finished.of_kind("dock") if "dropped" in event]
    assert again and all(event["dropped"] == {"lost": event["regenerated"]} for event in again)


def test_an_interrupted_run_ahead_of_ppo_goes_on_from_its_last_whole_step(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    ppo = {"algorithm": {"name": "ppo"}, "critic": {"optimizer": {"learningRate": 1e-3}}}
    job, folder = job_file(steps=200, **AHEAD, **ppo), tmp_path / "run"

    def interrupt(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 4, driver)
        driver.send_signal(signal.SIGINT)

    interrupted = run_while(job, folder, beside=interrupt)
    done = interrupted.of_kind("run_finished")[-1]["step"]
    saved = interrupted.of_kind("checkpoint")[-1]["step"]
    file = job_file(steps=done + 4, **AHEAD, **ppo)
    resumed = run(file, folder, "--resume")

    assert interrupted.code == 3, interrupted.output
    assert saved == done >= 4
    assert resumed.code == 0, resumed.output
    assert [event["step"] for event in resumed.of_kind("step")] == [*range(1, done + 5)]
    assert max(ages(resumed)) in (1, BOUND)
    metrics = [event["metrics"] for event in resumed.of_kind("step")]
    assert all(step["critic/gradient_norm"] > 0 for step in metrics)
    assert all(math.isfinite(step["critic/error"]) for step in metrics)
    assert any(step["correction/mean"] != 1 for step in metrics)


@pytest.mark.nightly
def test_rollout_devices_come_and_go_while_batches_are_ahead(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    free, port, folder = tmp_path / "free", free_port(), tmp_path / "run"
    (tmp_path / "pace.py").write_text(PACE.format(free=str(free)))
    pace = {"name": "pace", "type": "python", "weight": 0.0, "python": {"path": "pace.py"}}
    rewards = [{"name": "correct", "type": "dataset", "threshold": 1.0}, pace]
    three = {"type": "emulated", "devicesPerNode": 3}
    job = job_file(steps=20, **{**AHEAD, "rewards": rewards, "accelerator": three})

    def grow_and_shrink(driver: DriverHere) -> None:
        wait_for_event(folder, "step", 2, driver)
        for turn, count in enumerate((2, 1)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/scale",
                method="PUT",
                data=json.dumps({"rollout": count}).encode(),
                headers={"Authorization": "Bearer the-token"},
            )
            urllib.request.urlopen(request, timeout=10).close()
            wait_for_event(folder, "resize", turn + 1, driver)
        free.touch()

    environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": "the-token"}
    finished = run_while(job, folder, beside=grow_and_shrink, environment=environment)

    assert finished.code == 0, finished.output
    sizes = [(event["from"], event["to"]) for event in finished.of_kind("resize")]
    assert sizes == [(1, 2), (2, 1)]
    assert [event["step"] for event in finished.of_kind("step")] == [*range(1, 21)]
    assert max(ages(finished)) <= BOUND


def test_weights_come_while_a_batch_is_generated_and_its_samples_tell_which_drew_them(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    slow_generation = {"rollout": {"maxSequences": 1}}

    finished = run(job_file(steps=10, **slow_generation, **AHEAD), tmp_path / "run")

    assert finished.code == 0, finished.output
    assert [event["step"] for event in finished.of_kind("step")] == [*range(1, 11)]
    came = finished.of_kind("in_flight")
    steps = [event["step"] for event in came]
    assert steps and steps == sorted(set(steps))
    assert any(event["generating"] == event["devices"] == 1 for event in came)
    assert all(event["received_seconds"] > 0 and event["switch_seconds"] > 0 for event in came)
    assert max(ages(finished)) <= BOUND
    mixed = [event["staleness"] for event in finished.of_kind("step")]
    assert any(len(rows) > 1 for rows in mixed)  # a batch that two versions began samples of
