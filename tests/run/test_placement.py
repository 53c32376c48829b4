"""Where the states sit does not change what is learned."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import Finished, RunsOfAll, run

pytestmark = [pytest.mark.run]


def paths(finished: Finished, way: str) -> int:
    """Pairs of a client and a warehouse that it read in this way, in all steps."""
    events = finished.of_kind("dock")
    return sum(path[way] for event in events for path in event["data_paths"].values())


def test_separated_devices_over_tcp_learn_the_same_as_one_colocated_device_in_shared_memory(
    job_file: Callable[..., Path], run_of_all: RunsOfAll, tmp_path: Path
) -> None:
    short = {"steps": 2, "checkpoint": {}}

    alone = run_of_all(job_file(**short, accelerator={"devicesPerNode": 1}))
    apart = run(
        job_file(
            **short,
            accelerator={"devicesPerNode": 2},
            placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
            dock={"sharedMemory": "none"},
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
    assert paths(alone, "shared") and not paths(alone, "tcp")
    assert paths(apart, "tcp") and not paths(apart, "shared")


EDGES = {
    ("feed", "generate"), ("feed", "reference"), ("feed", "reward"), ("feed", "update"),
    ("generate", "reference"), ("generate", "reward"), ("generate", "update"),
    ("reference", "update"), ("reward", "update"),
}  # fmt: skip


def _pairs(state: str, waits: dict[str, float]) -> set[tuple[str, str]]:
    """Who was waited for, and who waited."""
    return {(awaited, state) for awaited in waits}


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
        edges = {(edge["from"], edge["to"]): edge["rows"] for edge in event["edges"]}
        assert edges == dict.fromkeys(EDGES, 32)
        waits = {pair for s, moved in event["states"].items() for pair in _pairs(s, moved["waits"])}
        assert waits <= EDGES | {(state, state) for state in event["states"]}
        assert event["rows"]["states"].keys() == event["states"].keys() - {"feed"}
        (warehouse,) = event["warehouses"]
        assert 0 < warehouse["peak_bytes"] < warehouse["capacity_bytes"]
        assert event["data_paths"] == {
            "feed": {"shared": 1, "tcp": 0},
            "generate": {"shared": 2, "tcp": 0},
            "reference": {"shared": 2, "tcp": 0},
            "reward": {"shared": 1, "tcp": 0},
            "update": {"shared": 2, "tcp": 0},
        }
