"""A batch that cannot go on is settled: the driver learns whether it was trained on all the same."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.errors import DockLost, WorkerError
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.stages import BatchCalls, Stages
from rljob_runtime.samples.batches import BatchName


def ended(value: Any) -> Call:
    call: Call = Future()
    call.set_result(value)
    return call


class StandIn:
    """A feeder, a warehouse and update ranks: who `waits` ends when the batch is dropped."""

    def __init__(self) -> None:
        self._waiting: list[Call] = []

    def address(self) -> Call:
        return ended(("here", 1))

    def drop(self, batch: BatchName) -> Call:
        for call in self._waiting:
            call.set_exception(DockLost("the batch was dropped"))
        return ended(0)

    def update(self, waits: bool) -> Call:
        if not waits:
            return ended("trained")
        self._waiting.append(Future())
        return self._waiting[-1]


@dataclass
class StandInCast:
    feeder: Any
    warehouses: list[Any]


@pytest.fixture
def settle(tmp_path: Path) -> Iterator[Any]:
    """settle(waits of each update rank) -> whether the batch counts as trained."""
    log = EventLog(tmp_path / "events.jsonl")

    def settled(*waits: bool) -> bool:
        actor = StandIn()
        stages = Stages(
            job=resolve(read_job(SMALL_JOB)),
            actors=StandInCast(actor, [actor]),  # type: ignore[arg-type]
            log=log,
            stop=lambda: True,
        )
        updates = [actor.update(each) for each in waits]
        calls = BatchCalls(batch=BatchName(kind="train", step=1))
        if waits:
            calls.of_stage["update"] = updates
        return stages.settle(calls)

    yield settled
    log.close()


def test_what_was_trained_counts_what_was_not_starts_over_and_half_of_it_is_an_error(
    settle: Any,
) -> None:
    assert settle(False, False)
    assert not settle(True, True)
    assert not settle()
    with pytest.raises(WorkerError, match="1 of 2 update ranks trained on train/1"):
        settle(False, True)
