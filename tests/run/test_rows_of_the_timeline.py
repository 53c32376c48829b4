"""Whose row of the timeline a stage's span belongs to."""

from pathlib import Path
from typing import Any

from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.span_events import write_spans
from rljob_runtime.record.spans import StageSpan

SPAN = StageSpan(start=1.0, end=2.0)


def rows(stage: str, devices: list[int], folder: Path, **spec: Any) -> list[tuple[str, int]]:
    job = resolve(read_job({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], **spec}}))
    found: list[Any] = []
    log = EventLog(folder / "events.jsonl")
    log.subscribe(found.append)
    spans = [SPAN] * len(devices)
    write_spans(log, job, stage=stage, step=1, spans=spans, devices=devices, held_out=False)
    log.close()
    return [(event.role, event.device) for event in found]


def test_a_sync_is_in_the_rows_of_the_devices_that_take_part(tmp_path: Path) -> None:
    separated = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}

    assert rows("sync", [0, 1], tmp_path, placement=separated) == [("update", 0), ("rollout", 0)]
    assert rows("generate", [1], tmp_path, placement=separated) == [("rollout", 0)]
    assert rows("update", [0], tmp_path, placement=separated) == [("update", 0)]
    assert rows("sync", [0, 1], tmp_path) == [("device", 0), ("device", 1)]


def test_without_the_first_device_the_second_has_its_own_row(tmp_path: Path) -> None:
    separated = {"mode": "separated", "updateDevices": 2, "rolloutDevices": 1}

    assert rows("update", [1], tmp_path, placement=separated) == [("update", 1)]
    assert rows("sync", [1, 2], tmp_path, placement=separated) == [("update", 1), ("rollout", 0)]
