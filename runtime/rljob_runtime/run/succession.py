"""State that only a driver has outlives it, so that another driver continues the same run on the same
workers.

`launch` creates a `Succession`, which stores values in the process above (`processes.holder`). These are the
workers, once all exist and whenever they change, and a `DriverState` before workers start on a batch and
after each step. Weights, samples, events and checkpoints are in workers and files. `loop` drops interrupted
work and starts it again, as when a device dies (`recovery`). Without Ray, workers end with their driver, and
nothing is stored.
"""

import pickle
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rljob_runtime.processes.link import Link
from rljob_runtime.processes.placement import Actors
from rljob_runtime.processes.workers import Workers
from rljob_runtime.prompts.rounds import CandidateRound, Round
from rljob_runtime.prompts.schedule import PromptSchedule, PromptState
from rljob_runtime.record.best import Best
from rljob_runtime.record.event_types import (
    CheckpointEvent,
    Event,
    RecoveryEvent,
    ResizeEvent,
    RunStartedEvent,
)
from rljob_runtime.record.events import (
    EventLog,
    cut_rewound,
    event_identity,
    events_in,
    lines_until,
)
from rljob_runtime.run.alarm_watch import AlarmWatch
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.run_request import RunRequest
from rljob_runtime.run.scale_requests import ScaleRequest
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import StragglerWatch
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES

if TYPE_CHECKING:
    from rljob_runtime.processes.on_ray import RayWorkers

RECENT_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBatch:
    """A batch in flight, as `BatchCalls` without its calls."""

    batch: BatchName
    round: Round | CandidateRound | None
    positions: tuple[int, ...]
    related_batches: tuple[BatchName, ...]

    @classmethod
    def of(cls, calls: BatchCalls) -> "OpenBatch":
        """Return the batch without its calls, which end with the driver that made them."""
        related_batches = tuple(calls.related_batches)
        return cls(
            batch=calls.batch,
            round=calls.round,
            positions=calls.positions,
            related_batches=related_batches,
        )

    def calls(self, driver: Driver) -> BatchCalls:
        """Return calls for what workers reported of the batch, answered once they have ended their work."""
        calls = BatchCalls(
            batch=self.batch,
            round=self.round,
            positions=self.positions,
            related_batches=[*self.related_batches],
        )
        rounds = [batch for batch in self.related_batches if batch.kind == "candidates"]
        actors = driver.actors
        for stage in driver.job.spec.states:
            if stage not in ("generate", "compare", "reward", *INFERENCE_STATES, *TRAINING_STATES):
                continue
            generates = stage == "generate"
            members = actors.rollout_members() if generates else actors.update_members()
            workers = actors.rewards if stage == "reward" else [m.worker for m in members]
            trains = stage in (*TRAINING_STATES, "compare")
            for name in [self.batch] if trains else [*rounds, self.batch]:
                report_calls = [worker.past_report(stage, name) for worker in workers]
                calls.of_stage.setdefault(stage, []).extend(report_calls)
                ranks = [] if stage == "reward" else [member.role.rank for member in members]
                calls.devices.setdefault(stage, []).extend(ranks)
        return calls


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """The state of a driver. size: length of the events' file; later events are not part of this state.
    already_written: events of an earlier driver that this one has not reached yet, and does not write again.
    The other fields are those of the driver and its components."""

    initialized: bool
    step: int
    num_recoveries: int
    num_reported_steps: int
    size: int
    already_written: Counter[object]
    schedule: PromptSchedule
    prompts_before: PromptState | None
    chains: dict[int, str]
    rollbacks: int
    skipped: int
    alarms: AlarmWatch
    stragglers: StragglerWatch
    replaced: dict[int, int]
    request: ScaleRequest
    failed: int
    evaluated_steps: list[int]
    best: Best
    step_seconds: list[float]
    dropped: dict[int, Counter[str]]
    held_out: BatchName | None
    resized: ResizeEvent | None
    open: dict[int, OpenBatch]
    attempts: Counter[int]
    failures: Counter[int]
    step_started_s: float

    @classmethod
    def of(cls, driver: Driver) -> "DriverState":
        """Return the current state of a driver."""
        steps, actions = driver.steps, driver.alarm_actions
        batches: Mapping[int, BatchCalls] = steps.batches if steps else {}
        return cls(
            initialized=driver.initialized,
            step=driver.step,
            num_recoveries=driver.num_recoveries,
            num_reported_steps=driver.num_reported_steps,
            size=driver.log.size,
            already_written=driver.log.already_written,
            schedule=driver.schedule,
            prompts_before=driver.prompts_before,
            chains=driver.chains,
            rollbacks=actions.rollbacks,
            skipped=actions.skipped,
            alarms=actions.watch,
            stragglers=driver.stragglers.watch,
            replaced=driver.stragglers.replaced,
            request=driver.elastic.request,
            failed=driver.elastic.failed,
            evaluated_steps=driver.evaluated_steps,
            best=driver.early_stopping.best,
            step_seconds=driver.step_seconds[-RECENT_STEPS:],
            dropped=driver.dropped,
            held_out=driver.held_out,
            resized=driver.resized,
            open={number: OpenBatch.of(calls) for number, calls in batches.items()},
            attempts=steps.attempts if steps else Counter(),
            failures=steps.failures if steps else Counter(),
            step_started_s=steps.step_started_s if steps else 0.0,
        )

    def apply_to(self, driver: Driver) -> None:
        """Set a new driver to this state. Interrupted work is dropped later."""
        driver.initialized, driver.step, driver.num_recoveries = (
            self.initialized,
            self.step,
            self.num_recoveries,
        )
        driver.schedule, driver.prompts_before = self.schedule, self.prompts_before
        driver.chains = self.chains
        driver.alarm_actions.rollbacks, driver.alarm_actions.skipped = self.rollbacks, self.skipped
        driver.alarm_actions.watch = self.alarms
        driver.stragglers.watch, driver.stragglers.replaced = self.stragglers, self.replaced
        driver.elastic.request, driver.elastic.failed = self.request, self.failed
        driver.evaluated_steps = self.evaluated_steps
        if driver.job.spec.evaluation is not None:  # an interrupted evaluation is repeated
            self.best.write(driver.store.folder)
        driver.step_seconds, driver.dropped = self.step_seconds, self.dropped
        driver.earlier_steps = self.num_reported_steps - len(self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """The state that a driver takes over. description: how the driver before it died. since: when it died,
    Unix seconds. saved: step of the last checkpoint that was reported, -1 without."""

    state: DriverState
    description: str
    since: float
    saved: int

    def batches(self, driver: Driver) -> dict[int, BatchCalls]:
        """Return the batches that were in flight, by their steps; 0 stands for an evaluation."""
        batches = {
            number: open_batch.calls(driver) for number, open_batch in self.state.open.items()
        }
        if self.state.held_out is not None:
            batches[0] = BatchCalls(batch=self.state.held_out)
        return batches

    def write_missing_events(self, driver: Driver) -> None:
        """Write the events of work that was done but perhaps not reported. No process may be writing
        checkpoints."""
        if self.state.resized is not None:
            driver.log.write(self.state.resized)
        last = driver.store.last_step()
        if last is not None and last > self.saved:
            driver.log.write(CheckpointEvent(step=last, path=str(driver.store.path(last))))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """The folder of a run, the step that it resumed from, and when it started (Unix seconds)."""

    folder: Path
    resumed_from: int | None
    started: float


class Succession:
    """The succession of one driver. link: to the process above the driver, None without one."""

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self._died: dict[str, Any] = link.ask("who_died") if link else {}
        self._stored = link.kept() if link and self._died else {}
        self.run_start: RunStart | None = self._load("begun")
        """The start that the driver before recorded; None without such a driver or such a start."""
        self.continues_workers = self.run_start is not None and "position" in self._stored
        """Whether all its workers had started: this driver continues with them. Otherwise the run resumes."""
        self._earlier: list[Event] = []
        self._present: list[Any] = []

    def request(self, request: RunRequest) -> RunRequest:
        """Return the request in the same folder as that of the driver before."""
        if self.run_start is None:
            return request
        return replace(request, output=self.run_start.folder, resume="if-any")

    def begin(self, folder: Path, *, resumed_from: int | None) -> None:
        """Record that the run has its folder."""
        started = self.run_start.started if self.run_start else time.time()
        self.run_start = RunStart(folder=folder, resumed_from=resumed_from, started=started)
        self._persist(begun=self.run_start)

    def report_restart(self, log: EventLog) -> None:
        """Report that the driver before this one died before all of its workers had started, so that they
        started again."""
        if self._died:
            log.write(
                RecoveryEvent(
                    devices=[],
                    others=["driver"],
                    hosts=[],
                    step=(self.run_start and self.run_start.resumed_from) or 0,
                    source="none",
                    seconds=time.time() - float(self._died["since"]),
                    message=str(self._died["seen"]),
                )
            )

    def start_listening(self) -> bool:
        """Declare that this process handles signals from now on. Returns whether the run was requested to
        stop before."""
        return bool(self.link and self.link.ask("listens"))

    def take_events(self, log: EventLog) -> list[Event]:
        """Return the events since this run started or was resumed, for subscribers that count. Events after
        the last stored state are not written again."""
        if not self.continues_workers:
            return []
        state: DriverState = self._load("position")
        with log.path.open("rb") as lines:
            events = [*events_in(lines_until(lines, state.size))]
            late_events = [*events_in(lines)]
        start_indices = [index for index, e in enumerate(events) if isinstance(e, RunStartedEvent)]
        log.already_written = state.already_written
        log.already_written.update(
            content for event in late_events if (content := event_identity(event)) is not None
        )
        self._earlier = [*events[start_indices[-1] if start_indices else 0 :], *late_events]
        return self._earlier

    def board(self, workers: Workers) -> tuple[str, int]:
        """Return the run's token and the port of its switchboard, by which workers reach it."""
        token_and_port: tuple[str, int] | None = (
            self._load("board") if self.continues_workers else None
        )
        if token_and_port is None:
            token_and_port = secrets.token_hex(32), workers.hold_ports(1)[0]
            self._persist(board=token_and_port)
        return token_and_port

    def scale_request(self) -> ScaleRequest | None:
        """Return the latest request for a number of rollout devices."""
        request: ScaleRequest | None = self._load("asked") if self.continues_workers else None
        return request

    def save_requested(self) -> bool:
        """Return whether a checkpoint was requested that was not written."""
        return self.continues_workers and bool(self._load("save"))

    def persist_scale_request(self, request: ScaleRequest) -> None:
        """Store a request for another number of rollout devices."""
        self._persist(asked=request)

    def persist_save_request(self) -> None:
        """Store a request for a checkpoint."""
        self._persist(save=True)

    def actors(self, workers: Workers) -> Actors | None:
        """Return the run's workers; None if they are to be started. workers: where they run."""
        if self.link is None:
            return None
        actors: Actors | None = self._load("actors") if self.continues_workers else None
        if actors is None:
            self.link.ask("end_others", [], [])
            return None
        earlier_workers = cast("RayWorkers", actors.pool.workers)
        earlier_workers.owner = self.link
        served = [*actors.warehouses, *actors.controllers.values(), actors.feeder, *actors.rewards]
        present: list[Any] = [*actors.devices, *served]
        actors.pool.nodes &= {member.role.node for member in (*actors.members, *actors.left_out)}
        self.link.ask(
            "end_others",
            [w.actor for w in present],
            earlier_workers.retain_nodes(actors.pool.nodes),
        )
        return actors

    def follow(self, driver: Driver) -> Takeover | None:
        """Store this driver's state from now on. Returns the state that it takes over."""
        if self.link is None:
            return None
        driver.persist = partial(self._persist_state, driver)
        if not self.continues_workers:
            driver.persist()
            return None
        state: DriverState = self._load("position")
        state.apply_to(driver)
        saved = [e.step for e in cut_rewound(self._earlier) if isinstance(e, CheckpointEvent)]
        resumed = self.run_start.resumed_from if self.run_start else None
        return Takeover(
            state=state,
            description=str(self._died["seen"]),
            since=float(self._died["since"]),
            saved=max([-1 if resumed is None else resumed, *saved[-1:]]),
        )

    def _persist_state(self, driver: Driver) -> None:
        """Store the driver's state, and its workers if they have changed: there may be many."""
        state, save = DriverState.of(driver), driver.save_requested.is_set()
        actors, workers = driver.actors, driver.actors.pool.workers
        present = [
            *actors.devices,
            actors.feeder,
            *actors.rewards,
            dict(getattr(workers, "groups", {})),
        ]
        changed = {} if present == self._present else {"actors": actors}
        self._present = present
        self._persist(driver.num_reported_steps, position=state, save=save, **changed)

    def _load(self, name: str) -> Any:
        """Return a value that the driver before stored; None if it stored none. Handles of Ray need Ray."""
        content = self._stored.get(name)
        return None if content is None else pickle.loads(content)  # noqa: S301 (stored by this program)

    def _persist(self, num_reported_steps: int | None = None, **values: Any) -> None:
        if self.link is not None:
            self.link.keep(num_reported_steps, **values)
