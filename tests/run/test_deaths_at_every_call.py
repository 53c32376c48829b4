"""Whoever dies at whatever call, or is slow, the run goes on: each step is told once, each sample trained on
once.

The driver, its loop and its recovery are the real ones; processes are objects of this one, which know the
samples that they were trained on. Real ones die in test_recovery.
"""

import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver_world import Killed, Sample
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.elastic import Elastic, ElasticUpdate
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.errors import DockLost, WorkerFailed
from rljob_runtime.processes.actors.feeder import PromptFeeder
from rljob_runtime.processes.actors.reward_worker import RewardReport, RewardWorker
from rljob_runtime.processes.device_roles import device_roles
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import (
    EvaluationEvent,
    Event,
    RecoveryEvent,
    ReplicasEvent,
    StepEvent,
)
from rljob_runtime.record.events import EventLog, read_events
from rljob_runtime.record.folders import Folder
from rljob_runtime.record.reports import SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.scale_requests import ScaleRequest, ScaleRequests
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import Straggler
from rljob_runtime.run.succession import DriverState, Takeover
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.worker.device_role import DeviceRole
from rljob_runtime.worker.transfers import Transfer

SAMPLES = 3
TOGETHER = ("update", "sync", "save", "load", "prepare", "take_up")
"""What all devices do at once: nobody has done it before all have begun."""
NEEDS = {"generate": "feed", "score": "generate", "update": "score"}
"""What a state waits for."""
CUT_OFF = WorkerFailed(RuntimeError("connection closed by peer"))
SPAN = StageSpan(start=0.0, end=1.0)
LEFT = {"stragglers": {"action": "replace"}, "checkpoint": {}}


@dataclass
class Processes:
    """All of a run's. fatal: numbers of calls at which who is called dies. answers: whether it first does
    what it is asked. away: for how many calls and looks a device that has died has no place. rows: in the
    dock. done: of each batch. shares: devices that generate it. waiting: for rows. meeting: what devices have
    begun to do together. placeless: by device without a place, how long it has none, and calls to it."""

    fatal: Sequence[int] = ()
    answers: bool = False
    away: int = 0
    calls: int = 0
    living: list["Process"] = field(default_factory=list)
    rows: dict[BatchName, list[Sample]] = field(default_factory=dict)
    done: Counter[Any] = field(default_factory=Counter)
    shares: Counter[BatchName] = field(default_factory=Counter)
    waiting: list[tuple[BatchName, Call]] = field(default_factory=list)
    meeting: list[tuple["Process", str, tuple[Any, ...], Call, bool]] = field(default_factory=list)
    placeless: dict[int, tuple[int, list[Callable[[], None]]]] = field(default_factory=dict)
    together: int = 1
    """Devices that share a model to generate."""
    half_sent: str = ""
    """A call that the driver dies in the midst of, once it has asked the first device."""
    behind: list[tuple["Process", Call]] = field(default_factory=list)
    """Calls to devices that wait for others whom nobody asks."""
    late_losses: bool = False
    """Whether nodes are missed late: when a device is hired, the reservation is given up in which others were
    begun since, which then never start."""
    stranded: list["Process"] = field(default_factory=list)

    def begin(self, role: Any, left: Collection[int] = ()) -> "Process":
        """A process without a device where the role is a class."""
        device = role if isinstance(role, DeviceRole) else None
        self.living.append(Process(self, device))
        return self.living[-1]

    def renew(self, nodes: Collection[int]) -> None:
        """No reservation is lost."""

    def hire(self, role: DeviceRole) -> "Process":
        if self.late_losses:
            self.stranded += [p for p in self.living if p.role is None and not p.has_started]
        if self.away:
            self.placeless[role.rank] = self.away, []
        return self.begin(role)

    def has_place(self, node: int) -> bool:
        """Each device has a node of its own."""
        self.look()
        return node not in self.placeless

    def look(self) -> None:
        """Places are found in time."""
        left = {rank: (times - 1, calls) for rank, (times, calls) in self.placeless.items()}
        self.placeless = {rank: held for rank, held in left.items() if held[0]}
        for _, calls in [held for rank, held in left.items() if rank not in self.placeless]:
            for call in calls:
                call()

    @property
    def workers(self) -> "Processes":
        return self

    def end(self, worker: "Process") -> None:
        self.die(worker)

    def dead(self, workers: Sequence["Process"]) -> list[bool]:
        return [worker not in self.living for worker in workers]

    def has_reservation(self, worker: "Process") -> bool:
        return worker not in self.stranded

    def move(self, node: int) -> bool:
        return False

    def die(self, worker: "Process") -> None:
        """Who computes with it is cut off."""
        if worker not in self.living:
            return
        self.living.remove(worker)
        if worker.role is not None:
            cut, self.meeting = self.meeting, []
            for *_, call, _ in cut:
                call.set_exception(CUT_OFF)
            for call in [call for other, call in self.behind if other is worker]:
                call.set_exception(CUT_OFF)

    def ready(self, name: str, batch: BatchName) -> bool:
        """Whether a state has its rows. Who waits for them hears only that they are dropped."""
        before = NEEDS[name]
        times = self.shares[batch] if before == "generate" else 1
        return 0 < times == self.done[before, batch]

    def called(self, worker: "Process", name: str, arguments: tuple[Any, ...]) -> Call:
        """Now, or once the device has a place, or once all devices have begun it."""
        assert worker not in self.stranded, f"{name} waits for ever"
        worker.has_started = True
        call: Call = Future()
        self.look()
        if worker.role is not None and worker.role.rank in self.placeless:
            self.placeless[worker.role.rank][1].append(
                lambda: self.called(worker, name, arguments).add_done_callback(passed_on(call))
            )
            return call
        if worker in [each for each, *_ in self.meeting]:
            self.behind.append((worker, call))
            return call
        given = [each for each in arguments if isinstance(each, Future)]
        if failure := next((error for each in given if (error := each.exception(0))), None):
            call.set_exception(failure)
            return call
        dies = self.calls in self.fatal
        self.calls += 1
        if worker not in self.living or (dies and not self.answers):
            self.die(worker)
            call.set_exception(WorkerFailed(ProcessLookupError("it died")))
            return call
        if name in NEEDS and not self.ready(name, arguments[0]):
            self.waiting.append((arguments[0], call))
            return call
        doing = [(worker, name, arguments, call, dies)]
        if worker.role is not None and name in TOGETHER:
            size = (arguments[1] if name == "prepare" else worker.role).world_size
            if sum(each.role is not None for each in self.living) < size:
                call.set_exception(CUT_OFF)
                return call
            self.meeting += doing
            if name == self.half_sent:
                self.half_sent = ""
                raise Killed
            if len(self.meeting) < size:
                return call
            doing, self.meeting = self.meeting, []
        told = [each.does(what, given) for each, what, given, *_ in doing]
        self.done.update(
            (what, given[0])
            for _, what, given, *_ in doing
            if given and isinstance(given[0], BatchName)
        )
        for (each, _, _, its, dying), answer in zip(doing, told, strict=True):
            if dying:
                its.set_exception(WorkerFailed(ProcessLookupError("it died")))
                self.die(each)
            else:
                its.set_result(answer)
        return call


@dataclass(eq=False)
class Process:
    """A device, or one without. weights: samples that they were trained on."""

    all: Processes
    role: DeviceRole | None
    weights: list[Sample] = field(default_factory=list)
    after: int = 0
    outlived: tuple[int, list[Sample]] | None = None
    has_started: bool = False

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.all.called(self, name, arguments)

    def does(self, name: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(type(self), f"do_{name}")(self, *arguments)

    def do_facts(self) -> dict[str, int]:
        return {"train_size": 16}

    def do_address(self) -> str:
        return "here"

    def do_open_world(self, *present: Call) -> str:
        return "a meeting"

    def do_prepare(self, meeting: Any, role: DeviceRole, meet_seconds: float) -> DevicePlace:
        self.role, self.weights, self.after = role, [], 0
        return DevicePlace(device=0, host="here", address="")

    def do_feed(self, batch: BatchName, version: int) -> None:
        assert batch not in self.all.rows, f"{batch} is there already"
        self.all.rows[batch] = [(batch.step, i) for i in range(SAMPLES)]

    def do_drop(self, batch: BatchName) -> int:
        gone = [call for name, call in self.all.waiting if name == batch]
        self.all.waiting = [each for each in self.all.waiting if each[0] != batch]
        for call in gone:
            call.set_exception(DockLost("dropped"))
        return len(self.all.rows.pop(batch, []))

    def do_generate(self, batch: BatchName, share: tuple[int, int]) -> None:
        self.all.shares[batch] = share[1] * self.all.together

    def do_score(self, batch: BatchName) -> RewardReport:
        return RewardReport(totals=[1.0], passes=[1.0], prompts=[0])

    def do_update(self, batch: BatchName) -> None:
        self.weights = [*self.weights, *self.all.rows[batch]]
        self.after = batch.step

    def do_sync(self, version: int) -> SyncReport:
        self.outlived = None
        return SyncReport(checksum=f"{version} {self.weights}", span=SPAN)

    def do_peaks(self) -> dict[str, int]:
        return {}

    def do_traffic(self) -> dict[str, Any]:
        return {}

    def do_save(self, folder: Path) -> Folder:
        (folder / "model").write_text(json.dumps(self.weights))
        return Folder(folder)

    def do_load(self, checkpoint: Folder, step: int) -> None:
        saved = json.loads((checkpoint.path / "model").read_text())
        self.weights, self.after, self.outlived = [tuple(each) for each in saved], step, None

    def do_let_go(self, keep: bool) -> int | None:
        if keep and self.outlived is None:
            self.outlived = (self.after, self.weights)
        return None if self.outlived is None else self.outlived[0]

    def do_copies(self) -> dict[int, list[int]]:
        return {}

    def do_drop_copies(self) -> None:
        pass

    def do_past_report(self, stage: str, batch: BatchName) -> None:
        """Of a batch that is begun again, nobody knows."""

    def do_take_up(self, step: int, transfers: Sequence[Transfer]) -> None:
        assert self.role is not None
        kept, givers = (
            self.outlived,
            {each.giver for each in transfers if each.taker == self.role.update_rank},
        )
        if givers:
            (giver,) = givers
            roles = [(p.role.update_rank, p) for p in self.all.living if p.role is not None]
            kept = next(process.outlived for rank, process in roles if rank == giver)
        assert kept is not None and kept[0] == step
        self.outlived, self.after, self.weights = kept, step, kept[1]


class TellingDriver(Driver):
    """Reports have no figures here: a step's event has its number alone. Device 1 is slow in step 2."""

    def report_step(self, calls: BatchCalls, seconds: float) -> None:
        self.stages.wait("memory", [*calls.peaks.values()], interruptible=False)
        self.stages.wait("statistics", [*calls.traffic, *calls.moved.values()], interruptible=False)
        self.step_seconds.append(seconds)
        self.log.write(StepEvent(step=self.step, seconds=seconds, metrics={}))
        if self.step == 2:
            slow = Straggler(state="update", unit=(1,), factor=3.0, steps=5)
            self.stragglers.watch.slow["update", (1,)] = slow


class Content(ScaleRequests):
    """Nobody asks for other devices that generate than there are: these train, too."""

    def __init__(self, job: ResolvedJob, actors: Actors) -> None:
        self._actors = actors
        super().__init__(job)

    @property
    def latest(self) -> ScaleRequest:
        return ScaleRequest(count=len(self._actors.members), turn=0, time=0.0)


def live(processes: Processes, folder: Path, changes: dict[str, Any]) -> list[Event]:
    """A run to its end, after which all devices were trained on all samples once, in order, and every step
    and evaluation was told. Returns the events."""
    spec = SMALL_JOB["spec"] | {"steps": 4, "checkpoint": {"every": 2}}
    job = resolve(read_job({**SMALL_JOB, "spec": spec | changes}))
    if processes.away:  # whatever else is asked of such jobs, which these devices do not do
        elastic = Elastic(update=ElasticUpdate(min_replicas=1))
        job = job.model_copy(update={"spec": job.spec.model_copy(update={"elastic": elastic})})
    processes.together = job.spec.rollout.parallelism.model_devices
    warehouse = SimpleNamespace(address=lambda: done(("here", 1)))
    roles = device_roles(job)
    members = [
        Member(
            role=role,
            worker=processes.begin(role),
            place=DevicePlace(device=role.rank, host="here", address=""),
        )
        for role in roles
    ]
    actors = Actors(
        members=members,
        pool=processes,  # type: ignore[arg-type]
        feeder=processes.begin(PromptFeeder),
        rewards=[processes.begin(RewardWorker)],
        warehouses=[warehouse],  # type: ignore[list-item]
        controllers={},
        dock=None,
        begin=processes.begin,
    )
    folder.mkdir()
    log = EventLog(folder / "events.jsonl")
    driver = driver_with(job, actors, log, folder)
    kept = [DriverState.of(driver)]
    driver.persist = lambda: kept.append(DriverState.of(driver))
    try:
        run_steps(driver)
    except Killed:
        position = pickle.loads(pickle.dumps(kept[-1]))
        driver = driver_with(job, actors, log, folder)
        position.apply_to(driver)
        run_steps(
            driver, Takeover(state=position, description="killed", since=time.time(), saved=-1)
        )
    log.close()

    whole = [(step, i) for step in range(1, 5) for i in range(SAMPLES)]
    trained: list[Any] = [member.worker.weights for member in actors.members]
    assert trained == [whole] * len(trained)
    assert len(trained) + len(actors.left_out) == len(members)
    events = list(read_events(folder / "events.jsonl"))
    told = Counter(event.step for event in events if isinstance(event, StepEvent))
    assert told == Counter(range(1, 5))
    evaluated = {event.step for event in events if isinstance(event, EvaluationEvent)}
    assert evaluated == ({0, 2, 4} if "evaluation" in changes else set())
    return events


def driver_with(job: ResolvedJob, actors: Actors, log: EventLog, folder: Path) -> TellingDriver:
    return TellingDriver(
        job=job,
        actors=actors,
        log=log,
        store=CheckpointStore(folder=folder / "checkpoints", keep=9),
        shared=True,
        spec_digest="",
        course_digest="",
        stop=lambda: False,
        requests=Content(job, actors),
        joined=lambda: None,
        watch=None,
    )


def passed_on(made: Call) -> Callable[[Call], None]:
    """What was called later is told where it was asked."""

    def settle(call: Call) -> None:
        if error := call.exception(0):
            made.set_exception(error)
        else:
            made.set_result(call.result(0))

    return settle


def done(value: Any) -> Call:
    call: Call = Future()
    call.set_result(value)
    return call


@pytest.mark.parametrize("answers", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"prompts": 8, "every": 2}},
        {"flow": {"mode": "streaming"}},
        {"update": {"parallelism": {"data": 2, "zero": 1}}},
        {"update": {"parallelism": {"data": 2, "zero": 1}}, "checkpoint": {}},
        {"rollout": {"engine": "vllm", "parallelism": {"tensor": 2}}},
        LEFT,
        LEFT | {"update": {"parallelism": {"data": 2, "zero": 1}}},
    ],
    ids=[
        "evaluated",
        "streaming",
        "from checkpoints",
        "from the beginning",
        "all bound to one engine",
        "slow",
        "slow, from a checkpoint of that step",
    ],
)
def test_each_sample_is_trained_on_once_and_each_step_told_once(
    answers: bool, changes: dict[str, Any], tmp_path: Path
) -> None:
    whole, undisturbed = Processes(), tmp_path / "undisturbed" / "events.jsonl"
    live(whole, undisturbed.parent, changes)

    assert whole.calls > 40
    left = [e.slow for e in read_events(undisturbed) if isinstance(e, RecoveryEvent)]
    assert left == [True] * ("stragglers" in changes)
    for place in range(whole.calls):
        for fatal in ([place], [place, place + 1 + place % 11])[: 1 + (place % 3 == 0)]:
            processes = Processes(fatal=fatal, answers=answers)
            try:
                live(processes, tmp_path / f"{fatal}", changes)
            except Exception as error:
                raise AssertionError(f"deaths at the calls {fatal}") from error


@pytest.mark.parametrize("answers", [False, True], ids=["before it", "after it"])
def test_so_it_is_where_the_dead_have_no_place_for_a_while(
    answers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_runtime.run.left_out.PLACE_SECONDS", 0.0)
    monkeypatch.setattr("rljob_runtime.run.left_out.LOOK_SECONDS", 0.0)
    changes = {"accelerator": {"nodes": 2, "devicesPerNode": 1}}
    whole = Processes(away=1)
    live(whole, tmp_path / "undisturbed", changes)

    courses = Counter[str]()
    for place in range(whole.calls):
        for fatal in ([place], [place, place + 1 + place % 23])[: 1 + (place % 3 == 0)]:
            processes = Processes(fatal=fatal, answers=answers, away=20)
            try:
                events = live(processes, tmp_path / f"{fatal}", changes)
            except Exception as error:
                raise AssertionError(f"deaths at the calls {fatal}") from error
            numbers = [event.live for event in events if isinstance(event, ReplicasEvent)]
            courses["-".join(map(str, numbers))] += 1

    assert courses["2-1-2"] > courses["2-1"] > 0


def test_so_it_is_where_a_node_is_missed_once_others_were_begun_on_it(tmp_path: Path) -> None:
    whole, stranded = Processes(), 0
    live(whole, tmp_path / "undisturbed", {})

    for place in range(whole.calls):
        for fatal in ([place], [place, place + 1 + place % 5]):
            processes = Processes(fatal=fatal, late_losses=True)
            try:
                live(processes, tmp_path / f"{fatal}", {})
            except Exception as error:
                raise AssertionError(f"deaths at the calls {fatal}") from error
            stranded += len(processes.stranded)

    assert stranded > 0


@pytest.mark.parametrize("half_sent", ["update", "sync", "save"])
def test_a_device_that_a_driver_asked_alone_before_it_died_is_ended_and_replaced(
    half_sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_runtime.run.recovery.MEET_SECONDS", 0.05)

    events = live(Processes(half_sent=half_sent), tmp_path / "run", {})

    (told,) = [event for event in events if isinstance(event, RecoveryEvent)]
    assert (told.devices, told.others, told.source) == ([0], ["driver"], "peers")
