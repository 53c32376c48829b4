"""A driver in a world of few lines: its flow and its checkpoints are the real ones, its actors know which
samples its weights were trained on, and it may die at any message or write."""

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import resolve
from rljob_runtime.errors import DockLost, WorkerError
from rljob_runtime.processes.actors.reward_worker import RewardReport
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.prompts.passed_rows import PassedSamples
from rljob_runtime.prompts.rounds import CandidateRound
from rljob_runtime.prompts.selection import select_groups
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import Event, StepEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.folders import Folder
from rljob_runtime.record.reports import InFlightFigures, SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.worker.device_role import DeviceRole

SAMPLES = 3
CHANGES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
Sample = tuple[int, int]


class Killed(BaseException):
    """In place of SIGKILL: the driver's process does not go on."""


@dataclass
class Boundaries:
    """What a driver says and writes, counted; it dies at number `fatal`. folder: within it, each file and
    folder that is made, renamed or removed is one, as Python's audit events tell of them beforehand."""

    folder: Path
    fatal: int | None = None
    crossed: int = 0

    def cross(self) -> None:
        if self.crossed == self.fatal:
            raise Killed
        self.crossed += 1

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, with a place to die at before it and one after it."""

        def wrapped(*args: Any, **named: Any) -> Any:
            self.cross()
            result = call(*args, **named)
            self.cross()
            return result

        return wrapped

    @contextmanager
    def counted(self) -> Iterator[Self]:
        """Within, what this thread changes in the folder is a boundary."""
        thread, on = threading.get_ident(), True

        def tell(event: str, arguments: tuple[Any, ...]) -> None:
            if on and event in CHANGES and threading.get_ident() == thread:
                path, *others = arguments
                if (event != "open" or others[1] & os.O_ACCMODE) and self._is_within(path):
                    self.cross()

        sys.addaudithook(tell)  # there is no taking it back
        try:
            yield self
        finally:
            on = False

    def _is_within(self, path: Any) -> bool:
        """Names that are relative are of a folder that is removed file by file."""
        return not isinstance(path, int) and (
            not os.path.isabs(path) or str(path).startswith(str(self.folder))
        )


@dataclass
class World:
    """All processes of a run: they end with its driver. accuracies: of evaluations, by step. sent: versions
    of the weights, to devices that went on generating."""

    boundaries: Boundaries
    weights: list[Sample] = field(default_factory=list)
    generated: dict[BatchName, list[Sample]] = field(default_factory=dict)
    lost: set[BatchName] = field(default_factory=set)
    accuracies: dict[int, float] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    chosen: dict[BatchName, Sequence[int]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        work = getattr(type(self), f"do_{name}")

        def call(*args: Any) -> Call:
            made: Call = Future()
            try:
                value = work(self, *args)
            except (DockLost, WorkerError) as error:
                made.set_exception(error)
                return made
            if isinstance(value, Future):  # it has not ended
                return value
            made.set_result(value)
            return made

        return self.boundaries.around(call)

    def do_address(self) -> tuple[str, int]:
        return "here", 1

    def do_facts(self) -> dict[str, int]:
        return {"train_size": 16}

    def do_feed(self, batch: BatchName, version: int, positions: Sequence[int] = ()) -> None:
        self.generated[batch], self.chosen[batch] = [], positions

    def do_generate(self, batch: BatchName, share: tuple[int, int]) -> None:
        if chosen := self.chosen.get(batch):
            self.generated[batch] = [(position, 0) for position in chosen]
        elif batch.kind != "candidates":
            self.generated[batch] = [(batch.step, i) for i in range(SAMPLES)]
        first = batch.attempt == (1 if batch.kind == "candidates" else 0)
        if batch.kind != "eval" and batch.step == 2 and first:
            raise DockLost("a warehouse died")

    def do_score(self, batch: BatchName) -> RewardReport | None:
        if batch.kind == "train":
            return None
        accuracy = self.accuracies[batch.step]
        return RewardReport(totals=[accuracy], passes=[accuracy], prompts=[0])

    def do_feed_candidates(self, now: CandidateRound, version: int) -> None:
        self.generated[now.rows] = []

    def do_select(self, now: CandidateRound) -> RewardReport:
        """Every third prompt teaches nothing; a sample is a prompt's position."""
        del self.generated[now.rows]
        signals = [position % 3 != 0 for position in now.positions]
        last = () if now.next_batch else range(len(signals))
        chosen = select_groups(signals, missing=now.missing, fill=False, last=last)
        selected = chosen.with_positions(now.positions)
        self.put(now.batch, selected.taken)
        if now.next_batch:
            self.put(now.next_batch, selected.left_over)
        return RewardReport(selected=selected)

    def put(self, batch: BatchName, positions: Sequence[int]) -> None:
        if positions:
            rows = self.generated.setdefault(batch, [])
            rows += [(position, 0) for position in positions]

    def do_update(self, batch: BatchName) -> Any:
        """Every other prompt that was chosen one by one is too easy."""
        self.weights += self.generated.pop(batch)
        if not (chosen := self.chosen.get(batch)):
            return None
        right = [float(position % 2) for position in chosen]
        passed = PassedSamples(passes=right, prompts=list(range(len(chosen))))
        return SimpleNamespace(passed=passed, lineage=None)

    def do_drop(self, batch: BatchName) -> int:
        return len(self.generated.pop(batch, []))

    def do_sync(self, version: int) -> Any:
        return SyncReport(checksum="", span=StageSpan(start=0, end=1))

    def do_send(self, version: int) -> SyncReport:
        self.sent.append(version)
        return SyncReport(checksum="", span=StageSpan(start=0, end=1))

    def do_switch(self, version: int) -> SyncReport:
        figures = InFlightFigures(
            before=0,
            received_seconds=1.0,
            hidden_seconds=0.75,
            tokens=40,
            received_bytes=64,
            switch_seconds=0.5,
            check_seconds=0.25,
            probe_gap=0.125,
            checks=9,
            generating=True,
        )
        return SyncReport(checksum="", span=StageSpan(start=0, end=1), in_flight=figures)

    def do_peaks(self) -> dict[str, int]:
        return {}

    def do_traffic(self) -> dict[str, Any]:
        return {}

    def do_save(self, folder: Path) -> Folder:
        (folder / "model").write_text(json.dumps(self.weights))
        return Folder(folder)

    def do_load(self, checkpoint: Folder, step: int) -> None:
        self.weights = [tuple(s) for s in json.loads((checkpoint.path / "model").read_text())]


class ToldDriver(Driver):
    """The world's reports have no figures: a step's event has its number alone."""

    def report_step(self, calls: BatchCalls, seconds: float) -> None:
        self.log.write(StepEvent(step=self.step, seconds=seconds, metrics={}))
        self.step_seconds.append(seconds)


def cast_of(world: World) -> Actors:
    role = DeviceRole(rank=0, update_rank=0, num_updating=1, generates=True, node=0, world=(0,))
    others = {"feeder": world, "reward-0": world}
    actors = SimpleNamespace(
        feeder=world, rewards=[world], others=others, warehouses=[world], devices=[world]
    )
    member = Member(role=role, worker=world, place=DevicePlace(device=0, host="here", address=""))
    actors.members = [member]
    actors.updating = actors.generating = lambda: [world]
    actors.update_members = actors.rollout_members = lambda: [member]
    actors.pool, actors.left_out = None, []
    return actors  # type: ignore[return-value]


def driver_of(
    kind: type[ToldDriver], job: RLJob, *, world: World, store: CheckpointStore, log: EventLog
) -> ToldDriver:
    """A driver of this world."""
    resolved = resolve(job)
    return kind(
        job=resolved,
        actors=cast_of(world),
        log=log,
        store=store,
        shared=True,
        spec_digest="",
        course_digest="",
        stop=lambda: False,
        requests=ScaleRequests(resolved),
        joined=lambda: None,
        watch=None,  # type: ignore[arg-type]
    )


class CountedLog(EventLog):
    """The driver may die at each event."""

    def __init__(self, path: Path, boundaries: Boundaries) -> None:
        super().__init__(path)
        self._boundaries = boundaries

    def write(self, event: Event) -> None:
        self._boundaries.around(super().write)(event)


FLOWS: list[dict[str, Any]] = [
    {"mode": "sync"},
    {"mode": "streaming"},
    {"mode": "async", "maxStaleness": 2},
]


def job_with(flow: dict[str, Any], **changes: Any) -> RLJob:
    """A small job on few devices."""
    spec = {
        **SMALL_JOB["spec"],
        "flow": flow,
        "steps": 4,
        "checkpoint": {"every": 2, "keep": 1},
        "evaluation": None,
        **changes,
    }
    if flow["mode"] != "async":
        spec["accelerator"] = {"type": "emulated", "devicesPerNode": 1}
    else:
        spec["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    return read_job({**SMALL_JOB, "spec": {k: v for k, v in spec.items() if v is not None}})
