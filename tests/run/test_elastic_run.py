"""A job that trains gets another rollout device and gives it back; nothing but time is different."""

import json
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from whole_runs import (
    DriverHere,
    Finished,
    run,
    run_while,
    steps_done,
    wait_for_event,
)

pytestmark = [pytest.mark.run]

STEPS = 20
PACE = '''
import os, time
def reward(prompt, response, answer):
    """Steps of a second until the test has seen what it came for."""
    if not os.path.exists({free!r}):
        time.sleep(1 / 32)
    return 0.0
'''


def ask(port: int, rollout: int | None = None) -> dict[str, Any]:
    """The driver's document; with `rollout` the answer to another number."""
    path, method = ("/status", "GET") if rollout is None else ("/scale", "PUT")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if rollout is None else json.dumps({"rollout": rollout}).encode(),
        headers={"Authorization": "Bearer the-token"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)["rollout"]


def wait_until_ready(port: int, count: int) -> None:
    deadline = time.monotonic() + 200
    while (report := ask(port))["ready"] != count:
        assert time.monotonic() < deadline, report
        time.sleep(0.1)


def weights(finished: Finished) -> bytes:
    folder = finished.folder / "checkpoints" / f"step-{STEPS:06d}" / "model"
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.nightly
def test_a_run_that_grows_and_shrinks_makes_the_same_model(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    free = tmp_path / "free"
    (tmp_path / "pace.py").write_text(PACE.format(free=str(free)))
    job = job_file(
        steps=STEPS,
        checkpoint={},
        rewards=[
            {"name": "correct", "type": "dataset", "threshold": 1.0},
            {"name": "pace", "type": "python", "weight": 0.0, "python": {"path": "pace.py"}},
        ],
        accelerator={"type": "emulated", "devicesPerNode": 3},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
    )
    port = free_port()
    environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": "the-token"}

    reports = []

    def grow_and_shrink(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "resized", "step", 2, driver)
        reports.append(ask(port, 2))
        wait_until_ready(port, 2)
        wait_for_event(tmp_path / "resized", "step", steps_done(tmp_path / "resized") + 2, driver)
        reports.append(ask(port, 1))
        wait_until_ready(port, 1)
        free.touch()

    resized = run_while(job, tmp_path / "resized", beside=grow_and_shrink, environment=environment)
    alone = run(job, tmp_path / "alone")

    assert resized.code == 0, resized.output
    asked, shrinking = reports
    assert (asked["wanted"], asked["ready"]) == (2, 1)
    assert [place["device"] for place in shrinking["draining"]] == [2]
    grown, shrunk = resized.of_kind("resize")
    assert (grown["from"], grown["to"], shrunk["from"], shrunk["to"]) == (1, 2, 2, 1)
    assert [event["step"] for event in resized.of_kind("step")] == [*range(1, STEPS + 1)]
    for event in resized.of_kind("dock"):
        rows = {state: moved["rows"] for state, moved in event["states"].items()}
        assert rows == dict.fromkeys(("feed", "generate", "reward", "update"), 32)
    between = [e for e in resized.of_kind("phase") if e["name"] == "generate" and e["device"] == 1]
    assert {event["step"] for event in between} == {*range(grown["step"] + 1, shrunk["step"] + 1)}
    assert alone.code == 0, alone.output
    assert weights(resized) == weights(alone)
