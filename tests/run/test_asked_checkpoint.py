"""A run that is asked for a checkpoint saves after the step that is under way, once."""

from pathlib import Path
from typing import Any

import pytest
from driver_world import FLOWS, Boundaries, ToldDriver, World, driver_of, job_with
from run_events import told_in

from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.stages import BatchCalls


class AskedDriver(ToldDriver):
    """Asked while its second step is under way."""

    def batch_trained(self, calls: BatchCalls) -> None:
        if calls.batch.step == 2:
            self.save_requested.set()
        super().batch_trained(calls)


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])
def test_a_checkpoint_that_is_asked_for_is_saved_once_beside_those_that_are_due(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    job = job_with(flow, steps=6, checkpoint={"every": 5, "keep": 9})
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=9)
    log = EventLog(tmp_path / "events.jsonl")

    run_steps(driver_of(AskedDriver, job, world=World(boundaries), store=store, log=log))

    saved = [event.step for event in told_in(log.path) if event.kind == "checkpoint"]
    assert saved == [0, 2, 5, 6]
