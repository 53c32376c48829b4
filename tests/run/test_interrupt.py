"""Ctrl-C: once, the run leaves with a checkpoint; twice, it ends at once. Nothing is left running.

The first of them on Ray, which starts a lost warehouse again before."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver_world import FLOWS, Boundaries, ToldDriver, World, driver_of, job_with
from wait_until import wait_until
from whole_runs import (
    STARTS_OVER,
    finish,
    gone_within,
    lose_rows,
    run,
    start,
    steps_done,
    wait_for_event,
    wait_for_text,
)

from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.stages import Interrupted

pytestmark = [pytest.mark.run]

BLOCKED = '''
import pathlib, time
def reward(prompt, response, answer):
    """Keeps the step from its end, so that the second interrupt comes before the first one's checkpoint."""
    pathlib.Path({busy!r}).touch()
    time.sleep(600)
'''
ONE = {"type": "emulated", "devicesPerNode": 1}


@pytest.mark.ray
@pytest.mark.nightly
def test_a_run_on_ray_outlives_its_warehouse_and_goes_on_after_an_interrupt_without_ray(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(
        job_file(steps=2000, checkpoint={"every": 2000}, accelerator=ONE), folder, ray=True
    )
    wait_for_event(folder, "step", 2, process)

    lose_rows(process, folder)
    wait_for_event(folder, "step", steps_done(folder) + 1, process)
    process.send_signal(signal.SIGINT)
    interrupted = finish(process, folder)
    left = gone_within(process.pid, 30)
    saved = max(event["step"] for event in interrupted.of_kind("checkpoint"))
    more = job_file(steps=saved + 2, checkpoint={"every": 2000}, accelerator=ONE)
    resumed = run(more, folder, "--resume")

    assert interrupted.code == 3, interrupted.output
    assert left == []
    assert saved >= 2
    (why, *_) = [
        event["message"]
        for event in interrupted.of_kind("warning")
        if STARTS_OVER in event["message"]
    ]
    assert "Traceback" not in why and "ray::" not in why
    assert resumed.code == 0, resumed.output
    assert [event["step"] for event in resumed.of_kind("step")] == list(range(1, saved + 3))


def test_a_second_interrupt_ends_at_once(job_file: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "blocked.py").write_text(BLOCKED.format(busy=str(tmp_path / "busy")))
    blocked = {"name": "blocked", "type": "python", "python": {"path": "blocked.py"}}
    folder = tmp_path / "run"
    process = start(job_file(steps=2000, accelerator=ONE, rewards=[blocked]), folder)
    wait_until("the step is blocked", (tmp_path / "busy").exists)

    process.send_signal(signal.SIGINT)
    wait_for_text(folder, "Ctrl-C again ends at once", process)
    process.send_signal(signal.SIGINT)
    ended = finish(process, folder, timeout=60)

    assert ended.code == 130
    assert gone_within(process.pid, 30) == []


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])
def test_a_run_whose_stages_end_at_once_is_interrupted_between_two_steps(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    job = job_with(flow, steps=50, checkpoint={"every": 50})
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=1)
    log = EventLog(tmp_path / "events.jsonl")
    driver = driver_of(ToldDriver, job, world=World(boundaries), store=store, log=log)
    driver.stop = lambda: driver.step >= 2

    with pytest.raises(Interrupted):
        run_steps(driver)

    assert 2 <= driver.step < 5
