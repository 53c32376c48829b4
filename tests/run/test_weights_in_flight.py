"""A driver's side of weights that come while a batch is generated: sent, switched to, told, once each."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from driver_world import Boundaries, ToldDriver, World, driver_of, job_with

from rljob_runtime.errors import WorkerError
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.reports import SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.run.delivery import Delivery
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.run_ahead import RunAhead


class OtherWorld(World):
    """Devices that train hold other weights than those that generate."""

    def do_send(self, version: int) -> SyncReport:
        return SyncReport(checksum="0123", span=StageSpan(start=0, end=1))

    def do_switch(self, version: int) -> SyncReport:
        return SyncReport(checksum="4567", span=StageSpan(start=0, end=1))


class SlowWorld(World):
    """Sending never ends."""

    def do_send(self, version: int) -> Any:
        return Future()


class LostWorld(World):
    """A device dies while it sends."""

    def do_send(self, version: int) -> SyncReport:
        raise WorkerError("device 1 is gone")


def driver(world: World, folder: Path) -> Driver:
    job = job_with({"mode": "async", "maxStaleness": 2})
    store = CheckpointStore(folder=folder / "checkpoints", keep=1)
    log = EventLog(folder / "events.jsonl")
    return driver_of(ToldDriver, job, world=world, store=store, log=log)


def generating(driver: Driver) -> Delivery:
    """Step 1 is done, and batch 2 is being generated."""
    ahead = RunAhead(
        done=1, rollout_version=0, steps=4, max_staleness=2, in_flight=True, generating=2
    )
    return Delivery(stages=driver.stages, run_ahead=ahead)


def told(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "in_flight"]


def test_a_version_is_sent_then_switched_to_and_told(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    world = World(boundaries)
    found = generating(driver(world, tmp_path))
    ahead = found.run_ahead

    for action in ahead.next():
        assert action == ("send", 1)
        found.start(1)
        ahead.action_started(action)
    found.poll()
    assert (ahead.sending, ahead.switching, ahead.rollout_version) == (None, 1, 0)
    found.finish()

    assert (ahead.switching, ahead.rollout_version, found.stages.rollout_version) == (None, 1, 1)
    assert world.sent == [1]
    (event,) = told(tmp_path)
    assert (event["step"], event["received_seconds"], event["switch_seconds"]) == (1, 1.0, 0.5)
    assert (event["devices"], event["generating"]) == (1, 1)
    assert (event["before"], event["hidden_seconds"], event["tokens"]) == (0, 0.75, 40)
    assert (event["probe_gap"], event["checks"]) == (0.125, 9)


def test_devices_that_hold_other_weights_after_it_stop_the_run(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    found = generating(driver(OtherWorld(boundaries), tmp_path))
    found.start(1)
    found.run_ahead.action_started(("send", 1))
    found.poll()

    with pytest.raises(WorkerError, match="weights version 1 differ between devices"):
        found.poll()

    assert found.run_ahead.rollout_version == 0
    assert not told(tmp_path)


def test_devices_that_do_not_get_it_in_time_are_counted(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    found = generating(driver(SlowWorld(boundaries), tmp_path))
    limit = found.stages.job.spec.flow.stage_timeout_seconds
    found.start(1)
    found.run_ahead.action_started(("send", 1))
    found.since -= limit - 5

    found.poll()
    found.since -= 10
    with pytest.raises(WorkerError, match=r"stage sync: 1 of 1 workers .* within \d+ s"):
        found.poll()


def test_what_a_device_raises_while_weights_come_ends_the_wait(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    found = generating(driver(LostWorld(boundaries), tmp_path))
    found.start(1)
    found.run_ahead.action_started(("send", 1))

    with pytest.raises(WorkerError, match="device 1 is gone"):
        found.poll()

    assert (found.run_ahead.sending, found.run_ahead.rollout_version) == (1, 0)
