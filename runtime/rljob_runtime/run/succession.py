"""What a driver knows alone outlives it, and another one takes over: the same run on the same workers.

`launch` makes a `Succession`, which keeps things in the process above (`processes.holder`): who works, once
all are there and whenever that changes, and a `Position` before workers are asked for a batch and after each
step. Weights, samples, events and checkpoints are in workers and files. `loop` has what was cut dropped and
begun again, as when a device dies (`recovery`). Without Ray workers end with their driver, and nothing is
kept.
"""

import pickle
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rljob_runtime.processes.link import Link
from rljob_runtime.processes.placement import Actors
from rljob_runtime.processes.workers import Workers
from rljob_runtime.prompts.rounds import CandidateRound, Round
from rljob_runtime.prompts.schedule import PromptState, Schedule
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
from rljob_runtime.run.scale_requests import Asked
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import StragglerWatch
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES

RECENT_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A batch on its way, as `BatchCalls`."""

    batch: BatchName
    now: Round | CandidateRound | None
    positions: tuple[int, ...]
    beside: tuple[BatchName, ...]

    @classmethod
    def of(cls, calls: BatchCalls) -> "Open":
        """Without its calls, which end with who made them."""
        beside = tuple(calls.beside)
        return cls(batch=calls.batch, now=calls.now, positions=calls.positions, beside=beside)

    def calls(self, driver: Driver) -> BatchCalls:
        """What workers reported of it, once they have ended what they were asked."""
        calls = BatchCalls(
            batch=self.batch, now=self.now, positions=self.positions, beside=[*self.beside]
        )
        rounds = [each for each in self.beside if each.kind == "candidates"]
        actors = driver.actors
        for stage in driver.job.spec.states:
            if stage not in ("generate", "compare", "reward", *INFERENCE_STATES, *TRAINING_STATES):
                continue
            generates = stage == "generate"
            members = actors.rollout_members() if generates else actors.update_members()
            workers = actors.rewards if stage == "reward" else [m.worker for m in members]
            trains = stage in (*TRAINING_STATES, "compare")
            for name in [self.batch] if trains else [*rounds, self.batch]:
                asked = [worker.past_report(stage, name) for worker in workers]
                calls.of_stage.setdefault(stage, []).extend(asked)
                ranks = [] if stage == "reward" else [member.role.rank for member in members]
                calls.devices.setdefault(stage, []).extend(ranks)
        return calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a driver stands. size: of the events' file then; what is told later is not known here. rest: of
    what another driver had told before, what this one has not come to yet. Others as the driver and its parts
    have them."""

    begun: bool
    step: int
    lives: int
    told: int
    size: int
    rest: Counter[object]
    schedule: Schedule
    before: PromptState | None
    chains: dict[int, str]
    rollbacks: int
    skipped: int
    alarms: AlarmWatch
    slow: StragglerWatch
    replaced: dict[int, int]
    seen: Asked
    failed: int
    evaluated: list[int]
    best: Best
    step_seconds: list[float]
    dropped: dict[int, Counter[str]]
    held_out: BatchName | None
    resized: ResizeEvent | None
    open: dict[int, Open]
    attempts: Counter[int]
    failures: Counter[int]
    marked: float

    @classmethod
    def of(cls, driver: Driver) -> "Position":
        """Where it stands now."""
        steps, actions = driver.steps, driver.alarm_actions
        batches: Mapping[int, BatchCalls] = steps.batches if steps else {}
        return cls(
            begun=driver.begun,
            step=driver.step,
            lives=driver.lives,
            told=driver.told,
            size=driver.log.size,
            rest=driver.log.already_written,
            schedule=driver.schedule,
            before=driver.before,
            chains=driver.chains,
            rollbacks=actions.rollbacks,
            skipped=actions.skipped,
            alarms=actions.watch,
            slow=driver.stragglers.watch,
            replaced=driver.stragglers.replaced,
            seen=driver.elastic.seen,
            failed=driver.elastic.failed,
            evaluated=driver.evaluated,
            best=driver.early_stopping.best,
            step_seconds=driver.step_seconds[-RECENT_STEPS:],
            dropped=driver.dropped,
            held_out=driver.held_out,
            resized=driver.resized,
            open={number: Open.of(calls) for number, calls in batches.items()},
            attempts=steps.attempts if steps else Counter(),
            failures=steps.failures if steps else Counter(),
            marked=steps.marked if steps else 0.0,
        )

    def give(self, driver: Driver) -> None:
        """Let a new driver stand there. What was cut is dropped later."""
        driver.begun, driver.step, driver.lives = self.begun, self.step, self.lives
        driver.schedule, driver.before = self.schedule, self.before
        driver.chains = self.chains
        driver.alarm_actions.rollbacks, driver.alarm_actions.skipped = self.rollbacks, self.skipped
        driver.alarm_actions.watch = self.alarms
        driver.stragglers.watch, driver.stragglers.replaced = self.slow, self.replaced
        driver.elastic.seen, driver.elastic.failed = self.seen, self.failed
        driver.evaluated = self.evaluated
        if driver.job.spec.evaluation is not None:  # one that was cut is made again
            self.best.write(driver.store.folder)
        driver.step_seconds, driver.dropped = self.step_seconds, self.dropped
        driver.earlier = self.told - len(self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What a driver takes over. seen: how the one before it died; since: when, unix seconds. saved: the last
    checkpoint that was told, -1 without."""

    position: Position
    seen: str
    since: float
    saved: int

    def batches(self, driver: Driver) -> dict[int, BatchCalls]:
        """Those that were on their way, by their steps; 0: an evaluation."""
        found = {number: each.calls(driver) for number, each in self.position.open.items()}
        if self.position.held_out is not None:
            found[0] = BatchCalls(batch=self.position.held_out)
        return found

    def tell_rest(self, driver: Driver) -> None:
        """What was done, and perhaps not told any more. Nobody writes checkpoints."""
        if self.position.resized is not None:
            driver.log.write(self.position.resized)
        last = driver.store.last_step()
        if last is not None and last > self.saved:
            driver.log.write(CheckpointEvent(step=last, path=str(driver.store.path(last))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run's folder, the step that it went on after, and when it began (unix seconds)."""

    folder: Path
    resumed_from: int | None
    started: float


class Succession:
    """Of one driver. link: to the process above it, None without."""

    def __init__(self, link: Link | None) -> None:
        self.link = link
        self._died: dict[str, Any] = link.ask("who_died") if link else {}
        self._kept = link.kept() if link and self._died else {}
        self.begun: Begun | None = self._found("begun")
        """By the driver before; None where there was none, or it had begun nothing."""
        self.joins = self.begun is not None and "position" in self._kept
        """Whether its workers were all there: they are gone on with. Otherwise the run resumes."""
        self._earlier: list[Event] = []
        self._present: list[Any] = []

    def request(self, request: RunRequest) -> RunRequest:
        """In the same folder as the driver before."""
        if self.begun is None:
            return request
        return replace(request, output=self.begun.folder, resume="if-any")

    def begin(self, folder: Path, *, resumed_from: int | None) -> None:
        """The run has its folder."""
        started = self.begun.started if self.begun else time.time()
        self.begun = Begun(folder=folder, resumed_from=resumed_from, started=started)
        self._keep(begun=self.begun)

    def tell_beginning(self, log: EventLog) -> None:
        """That the driver before this one died before its workers were all there: they began again."""
        if self._died:
            log.write(
                RecoveryEvent(
                    devices=[],
                    others=["driver"],
                    hosts=[],
                    step=(self.begun and self.begun.resumed_from) or 0,
                    source="none",
                    seconds=time.time() - float(self._died["since"]),
                    message=str(self._died["seen"]),
                )
            )

    def stops(self) -> bool:
        """This process hears signals from now on. Whether the run was asked to stop before."""
        return bool(self.link and self.link.ask("listens"))

    def take_events(self, log: EventLog) -> list[Event]:
        """What was told since this run began, or was resumed, for those who count; what was told after the
        last position is not told again."""
        if not self.joins:
            return []
        position: Position = self._found("position")
        with log.path.open("rb") as lines:
            told = [*events_in(lines_until(lines, position.size))]
            late = [*events_in(lines)]
        starts = [place for place, e in enumerate(told) if isinstance(e, RunStartedEvent)]
        log.already_written = position.rest
        log.already_written.update(
            what for event in late if (what := event_identity(event)) is not None
        )
        self._earlier = [*told[starts[-1] if starts else 0 :], *late]
        return self._earlier

    def board(self, workers: Workers) -> tuple[str, int]:
        """Token of the run, and the port of its switchboard, by which workers know it."""
        found: tuple[str, int] | None = self._found("board") if self.joins else None
        if found is None:
            found = secrets.token_hex(32), workers.hold_ports(1)[0]
            self._keep(board=found)
        return found

    def asked(self) -> Asked | None:
        """The number of rollout devices that was asked for last."""
        asked: Asked | None = self._found("asked") if self.joins else None
        return asked

    def save_asked(self) -> bool:
        """Whether a checkpoint was asked for that was not made."""
        return self.joins and bool(self._found("save"))

    def keep_asked(self, asked: Asked) -> None:
        """Another number is asked for."""
        self._keep(asked=asked)

    def keep_save(self) -> None:
        """A checkpoint is."""
        self._keep(save=True)

    def actors(self, workers: Workers) -> Actors | None:
        """The run's workers; None where they are to be started. workers: where."""
        if self.link is None:
            return None
        actors: Actors | None = self._found("actors") if self.joins else None
        if actors is None:
            self.link.ask("end_others", [], [])
            return None
        kept: Any = actors.pool.workers
        kept.maker = self.link
        served = [*actors.warehouses, *actors.controllers.values(), actors.feeder, *actors.rewards]
        present: list[Any] = [*actors.devices, *served]
        actors.pool.nodes &= {member.role.node for member in (*actors.members, *actors.left_out)}
        self.link.ask("end_others", [w.actor for w in present], kept.held(actors.pool.nodes))
        return actors

    def follow(self, driver: Driver) -> Taken | None:
        """Keep what this driver knows from now on. Returns what it takes over."""
        if self.link is None:
            return None
        driver.keep = partial(self._keep_position, driver)
        if not self.joins:
            driver.keep()
            return None
        position: Position = self._found("position")
        position.give(driver)
        saved = [e.step for e in cut_rewound(self._earlier) if isinstance(e, CheckpointEvent)]
        resumed = self.begun.resumed_from if self.begun else None
        return Taken(
            position=position,
            seen=str(self._died["seen"]),
            since=float(self._died["since"]),
            saved=max([-1 if resumed is None else resumed, *saved[-1:]]),
        )

    def _keep_position(self, driver: Driver) -> None:
        """And who works, where that has changed: there may be many."""
        position, save = Position.of(driver), driver.asked_to_save.is_set()
        actors, workers = driver.actors, driver.actors.pool.workers
        present = [
            *actors.devices,
            actors.feeder,
            *actors.rewards,
            dict(getattr(workers, "groups", {})),
        ]
        changed = {} if present == self._present else {"actors": actors}
        self._present = present
        self._keep(driver.told, position=position, save=save, **changed)

    def _found(self, name: str) -> Any:
        """What the driver before has kept; None where it had not. Handles of Ray need Ray."""
        content = self._kept.get(name)
        return None if content is None else pickle.loads(content)  # noqa: S301 (its own)

    def _keep(self, told: int | None = None, **values: Any) -> None:
        if self.link is not None:
            self.link.keep(told, **values)
