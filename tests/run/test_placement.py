"""Where the states sit does not change what is learned."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [pytest.mark.ray]


def test_separated_devices_learn_the_same_as_one_colocated_device(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    short = {"steps": 3, "checkpoint": {}}

    alone = run(job_file(**short, accelerator={"devicesPerNode": 1}), tmp_path / "alone")
    apart = run(
        job_file(
            **short,
            accelerator={"devicesPerNode": 2},
            placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        ),
        tmp_path / "apart",
    )

    assert alone.code == 0, alone.output
    assert apart.code == 0, apart.output
    rewards = [
        [event["metrics"]["reward/mean"] for event in finished.of_kind("step")]
        for finished in (alone, apart)
    ]
    assert rewards[0] == rewards[1]
    losses = [
        [event["metrics"]["loss"] for event in finished.of_kind("step")]
        for finished in (alone, apart)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_reference_model_and_two_optimizer_steps_per_batch_work_together(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(
        steps=2,
        checkpoint={},
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.1}},
        batch__miniBatchSize=4,
        batch__epochs=2,
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    metrics = [event["metrics"] for event in finished.of_kind("step")]
    assert metrics[0]["kl"] >= 0
    assert metrics[1]["kl"] > 0
    assert all(0 <= step["clip_fraction"] <= 1 for step in metrics)
    assert all(step["mismatch/max"] < 1e-3 for step in metrics)
    for event in finished.of_kind("dock"):
        assert {state: moved["rows"] for state, moved in event["states"].items()} == dict.fromkeys(
            ("feed", "generate", "reference", "reward", "update"), 32
        )
        assert all(moved["bytes_read"] > 0 for moved in list(event["states"].values())[1:])
        (warehouse,) = event["warehouses"]
        assert 0 < warehouse["peak_bytes"] < warehouse["capacity_bytes"]
        assert event["data_paths"] == {
            "feed": {"shared": 1, "tcp": 0},
            "generate": {"shared": 2, "tcp": 0},
            "reference": {"shared": 2, "tcp": 0},
            "reward": {"shared": 1, "tcp": 0},
            "update": {"shared": 2, "tcp": 0},
        }


def test_without_shared_memory_samples_go_over_tcp(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=1, checkpoint={}, dock={"sharedMemory": "none"})

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    (event,) = finished.of_kind("dock")
    assert {path["shared"] for path in event["data_paths"].values()} == {0}
    assert all(path["tcp"] for path in event["data_paths"].values())
