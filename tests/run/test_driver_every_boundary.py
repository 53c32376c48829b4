"""A driver that dies at any message or write: its next run goes on, and every sample counts once.

The driver, its flow and its checkpoints are the real ones; the cast is a world of few lines that knows
which samples its weights were trained on. Real processes die in test_resume_is_bitwise.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from whole_runs import SMALL_JOB

from rljob_api.elastic import DevicePlace
from rljob_api.load import read_job
from rljob_api.rljob import RLJob
from rljob_runtime import async_steps, driver, stages
from rljob_runtime.actors.device import Seat
from rljob_runtime.batches import BatchName
from rljob_runtime.checkpoint import CheckpointStore, RunState, read_state
from rljob_runtime.driver import Driver
from rljob_runtime.errors import DockLost
from rljob_runtime.events import EventLog
from rljob_runtime.folders import Folder
from rljob_runtime.placement import Cast, Member
from rljob_runtime.scale_desk import ScaleDesk
from rljob_runtime.stages import BatchCalls

SAMPLES = 3
Sample = tuple[int, int]


class Killed(BaseException):
    """In place of SIGKILL: the driver's process does not go on."""


@dataclass
class Boundaries:
    """What a driver says and writes, counted; it dies at number `fatal`."""

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


@dataclass(eq=False)
class Answer:
    """Of a call that was carried out at once."""

    value: Any
    error: Exception | None = None


@dataclass
class World:
    """All processes of a run: they end with its driver."""

    boundaries: Boundaries
    weights: list[Sample] = field(default_factory=list)
    generated: dict[BatchName, list[Sample]] = field(default_factory=dict)
    lost: set[BatchName] = field(default_factory=set)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        work = getattr(type(self), f"do_{name}")

        def remote(*args: Any) -> Answer:
            try:
                return Answer(work(self, *args))
            except DockLost as error:
                return Answer(None, error)

        return SimpleNamespace(remote=self.boundaries.around(remote))

    def do_address(self) -> tuple[str, int]:
        return "here", 1

    def do_feed(self, batch: BatchName, version: int) -> None:
        self.generated[batch] = []

    def do_generate(self, batch: BatchName, share: tuple[int, int]) -> None:
        self.generated[batch] = [(batch.step, i) for i in range(SAMPLES)]
        if batch.step == 2 and batch.attempt == 0:
            raise DockLost("a warehouse died")

    def do_score(self, batch: BatchName) -> None:
        pass

    def do_update(self, batch: BatchName) -> None:
        self.weights += self.generated.pop(batch)

    def do_drop(self, batch: BatchName) -> int:
        return len(self.generated.pop(batch, []))

    def do_sync(self, version: int) -> Any:
        return SimpleNamespace(span=None, checksum="")

    def do_peaks(self) -> dict[str, int]:
        return {}

    def do_traffic(self) -> dict[str, Any]:
        return {}

    def do_save(self, folder: Path) -> Folder:
        (folder / "model").write_text(json.dumps(self.weights))
        return Folder(folder)

    def do_load(self, checkpoint: Folder) -> None:
        self.weights = [tuple(s) for s in json.loads((checkpoint.path / "model").read_text())]


class ToldDriver(Driver):
    """The world's reports have no figures: a step's event has its number alone."""

    def tell_step(self, calls: BatchCalls, seconds: float) -> None:
        self.log.write("step", step=self.step, seconds=seconds)


def cast_of(world: World) -> Cast:
    seat = Seat(rank=0, update_rank=0, num_updating=1, generates=True, node=0)
    cast = SimpleNamespace(feeder=world, rewards=[world], warehouses=[world], devices=[world])
    member = Member(seat=seat, worker=world, place=DevicePlace(device=0, host="here", address=""))
    cast.members = [member]
    cast.updating = cast.generating = lambda: [world]
    cast.update_members = cast.rollout_members = lambda: [member]
    cast.pool = None
    return cast  # type: ignore[return-value]


def told_checkpoint(folder: Path) -> int:
    """The last step whose checkpoint was told of, 0 when there is none."""
    events = folder / "events.jsonl"
    told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return max([event["step"] for event in told if event["kind"] == "checkpoint"], default=0)


def live(job: RLJob, folder: Path, boundaries: Boundaries) -> list[Sample]:
    """One driver's life, from what the last one left to the end. Returns what its weights are of."""
    store = CheckpointStore(folder=folder / "checkpoints", keep=job.spec.checkpoint.keep)
    store.recover()
    assert (store.last_step() or 0) >= told_checkpoint(folder)
    log = EventLog(folder / "events.jsonl")
    world = World(boundaries)
    try:
        living = ToldDriver(
            job=job,
            cast=cast_of(world),
            log=log,
            store=store,
            shared=True,
            spec_digest="",
            stop=lambda: False,
            desk=ScaleDesk(job),
            joined=lambda: None,
            watch=None,  # type: ignore[arg-type]
        )
        if latest := store.latest():
            living.resume(latest)
        living.run()
        assert store.last_step() == job.spec.steps
    finally:
        log.close()
    return world.weights


def fake_get(calls: Any, timeout: float | None = None) -> Any:
    if isinstance(calls, list):
        return [fake_get(call) for call in calls]
    if calls.error:
        raise calls.error
    return calls.value


@pytest.fixture
def boundaries(monkeypatch: pytest.MonkeyPatch) -> Iterator[Boundaries]:
    """Those that everything passes from now on."""
    found = Boundaries()
    stand_in = SimpleNamespace(
        get=fake_get,
        wait=lambda calls, num_returns=1, timeout=None: (calls[:num_returns], calls[num_returns:]),
        exceptions=ray.exceptions,
    )
    for module in (stages, async_steps):
        monkeypatch.setattr(module, "ray", stand_in)
    monkeypatch.setattr(driver, "folder_for_all", lambda path, shared: Folder(path))
    for owner, name in (
        (EventLog, "write"),
        (Path, "rename"),
        (Path, "write_text"),
        (Path, "mkdir"),
        (os, "fsync"),
    ):
        monkeypatch.setattr(owner, name, found.around(getattr(owner, name)))

    def rmtree(folder: Path, ignore_errors: bool) -> None:
        """File by file, as it is."""
        for path in sorted(folder.rglob("*"), reverse=True):
            found.cross()
            path.rmdir() if path.is_dir() else path.unlink()
        if folder.exists():
            found.cross()
            folder.rmdir()

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    yield found


FLOWS: list[dict[str, Any]] = [
    {"mode": "sync"},
    {"mode": "streaming"},
    {"mode": "async", "maxStaleness": 2},
]


def job_with(flow: dict[str, Any]) -> RLJob:
    spec = {
        **SMALL_JOB["spec"],
        "flow": flow,
        "steps": 4,
        "checkpoint": {"every": 2, "keep": 1},
        "evaluation": None,
    }
    if flow["mode"] != "async":
        spec["accelerator"] = {"type": "emulated", "devicesPerNode": 1}
    else:
        spec["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    return read_job({**SMALL_JOB, "spec": {k: v for k, v in spec.items() if v is not None}})


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])
def test_a_driver_killed_at_any_boundary_and_at_one_more_of_its_next_life_trains_each_sample_once(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    job = job_with(flow)
    whole = [(step, i) for step in range(1, job.spec.steps + 1) for i in range(SAMPLES)]

    def lives(folder: Path, fatal: list[int]) -> list[Sample]:
        """What the weights are trained on after drivers that die at these boundaries, and a last one."""
        folder.mkdir(parents=True)
        for place in fatal:
            boundaries.crossed, boundaries.fatal = 0, place
            with contextlib.suppress(Killed):
                live(job, folder, boundaries)
        boundaries.crossed, boundaries.fatal = 0, None
        return live(job, folder, boundaries)

    assert lives(tmp_path / "undisturbed", []) == whole
    deaths = boundaries.crossed
    assert deaths > 50
    for place in range(deaths):
        assert lives(tmp_path / str(place), [place, place * 7 % deaths]) == whole, place


def test_a_checkpoint_that_is_made_again_is_whole_wherever_the_driver_dies(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    state = RunState(step=4, seed=0, weight_version=4, dock_rows=0, spec_digest="")

    def save(folder: Path) -> None:
        store = CheckpointStore(folder=folder, keep=1)
        (store.begin(4) / "model").write_text("weights")
        store.commit(state)

    save(tmp_path / "counted")
    boundaries.crossed = 0
    save(tmp_path / "counted")
    for place in range(boundaries.crossed):
        folder = tmp_path / str(place)
        save(folder)
        boundaries.crossed, boundaries.fatal = 0, place
        with pytest.raises(Killed):
            save(folder)
        boundaries.fatal = None

        store = CheckpointStore(folder=folder, keep=1)
        store.recover()

        latest = store.latest()
        assert latest is not None
        assert read_state(latest) == state
        assert (latest / "model").read_text() == "weights"
        assert [path.name for path in folder.iterdir()] == ["step-000004"]
