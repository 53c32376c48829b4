"""A driver that is rolled back, on actors of few lines: what its weights were trained on at the end.

The driver, its flow and its checkpoints are the real ones, as in test_driver_every_boundary.
"""

from pathlib import Path
from typing import Any

import pytest
from driver_world import FLOWS, Boundaries, ToldDriver, World, driver_of, job_with

from rljob_runtime.record.checkpoint import CheckpointStore, read_state
from rljob_runtime.record.event_types import AlarmEvent, ProgressEvent
from rljob_runtime.record.events import EventLog, read_events
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.stages import BatchCalls

BAD = 4
"""The draw of prompts after which the entropy is gone."""


class CollapsingDriver(ToldDriver):
    """Steps are healthy, but that on the fourth draw of prompts."""

    def report_step(self, calls: BatchCalls, seconds: float) -> None:
        super().report_step(calls, seconds)
        draw = calls.batch.draw
        self.log.write(ProgressEvent(message=f"draw {draw}"))
        self.alarm_actions.observe(self.step, {"entropy": 0.0 if draw == BAD else 0.5})


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])
def test_a_run_that_is_rolled_back_trains_on_other_prompts_in_place_of_those(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    guards = {"entropyCollapse": {"window": 1, "policy": "rollback"}}
    job = job_with(flow, steps=6, guards=guards, checkpoint={"every": 2, "keep": 3})
    log = EventLog(tmp_path / "events.jsonl")
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=3)
    world = World(boundaries)
    driver = driver_of(CollapsingDriver, job, world=world, store=store, log=log)

    run_steps(driver)

    # Step 4 was bad: back to the checkpoint of step 2, whose weights knew draws 1 and 2; on with 5.
    assert [step for step, sample in world.weights if sample == 0] == [1, 2, 3, 4, 5, 6]
    draws = [e.message for e in read_events(log.path) if isinstance(e, ProgressEvent)]
    assert draws == [f"draw {n}" for n in (1, 2, 3, 4, 5, 6, 7, 8)]
    assert store.last_step() == 6
    state = read_state(store.path(6))
    assert (state.rollbacks, state.skipped_steps) == (1, 2)
    told = [
        e.rolled_back_to
        for e in read_events(log.path)
        if isinstance(e, AlarmEvent) and e.state == "raised"
    ]
    assert told == [2]


def test_a_run_that_goes_on_after_a_rollback_knows_of_it(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    guards = {"entropyCollapse": {"window": 1, "policy": "rollback"}}
    job = job_with(FLOWS[0], steps=6, guards=guards, checkpoint={"every": 2, "keep": 3})
    log = EventLog(tmp_path / "events.jsonl")
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=3)
    run_steps(driver_of(CollapsingDriver, job, world=World(boundaries), store=store, log=log))
    again = driver_of(CollapsingDriver, job, world=World(boundaries), store=store, log=log)

    again.resume(store.path(4))

    assert (again.alarm_actions.rollbacks, again.alarm_actions.skipped) == (1, 2)
    assert str(again.begin_batch(5, 0).batch) == "train/5+2"
