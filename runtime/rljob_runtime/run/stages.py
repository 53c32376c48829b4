"""The stages of a batch as calls on the actors: made, waited for, and settled when one fails.

Called by the driver and by its loop over steps. Moves no sample data: it names batches, and the
workers claim their rows in the dock.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION
from dataclasses import dataclass, field
from typing import Any

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import DeadlineError, DockError, RljobError, WorkerError
from rljob_runtime.processes.calls import answers, ended_of, results
from rljob_runtime.processes.clock import monotonic, sleep
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.prompts.rounds import CandidateRound, Round
from rljob_runtime.record.event_types import InFlightEvent, ReshardEvent, WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.metrics import in_flight_event, large_deltas, reshard_event
from rljob_runtime.record.reward_errors import write_reward_errors
from rljob_runtime.record.span_events import write_spans
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES

WAREHOUSE_ANSWER_SECONDS = 5.0


class Interrupted(Exception):
    """The user asked to stop; what was not finished is done again on resume."""


@dataclass(slots=True, kw_only=True)
class BatchCalls:
    """The calls of one batch by stage; a stage that was not started is missing.

    now: the round of a partial rollout or of dynamic sampling that makes the batch. positions: of its
    prompts, where a difficulty filter chooses them. beside: other batches of the step, which are lost with
    it. devices: numbers of those whose calls `of_stage` has. peaks: of each device's memory, by its number.
    moved: to and from the dock, by each device; traffic: by others. traces: of devices that record this
    step, or the sync after the one before.
    """

    batch: BatchName
    now: Round | CandidateRound | None = None
    positions: tuple[int, ...] = ()
    beside: list[BatchName] = field(default_factory=list)
    of_stage: dict[str, list[Call]] = field(default_factory=dict)
    devices: dict[str, list[int]] = field(default_factory=dict)
    peaks: dict[int, Call] = field(default_factory=dict)
    moved: dict[int, Call] = field(default_factory=dict)
    traffic: list[Call] = field(default_factory=list)
    traces: list[Call] = field(default_factory=list)

    def all(self) -> list[Call]:
        """The calls of all stages."""
        return [call for calls in self.of_stage.values() for call in calls]

    def reports(self, stage: str) -> list[Any]:
        """What the stage's calls returned, those that failed left out. All must have ended."""
        found = []
        for call in self.of_stage.get(stage, []):
            try:
                found += results([call])
            except RljobError:
                continue
        return found


def check_sums(version: int, reports: Sequence[Any]) -> None:
    """Raise WorkerError where devices hold other weights than each other."""
    sums = {report.checksum for report in reports if report.checksum}
    if len(sums) > 1:
        raise WorkerError(
            f"weights version {version} differ between devices after the sync: "
            f"checksums {sorted(sums)}; the run stops, resume from the last checkpoint"
        )


@dataclass(slots=True, kw_only=True)
class Stages:
    """What a run's workers are asked to do.

    stop: asked during waits; True ends them with Interrupted. look: called while waiting. keep: called before
    workers are asked for a batch, whose calls have what they are asked for. held: the
    version of the weights that the rollout devices hold: the number of steps that made them.
    phases: seconds of the slowest worker in each stage since they were last taken. spent: whether a
    training batch was generated since the last sync, after which devices that swap hold the update's weights.
    swaps: whether they do. large_deltas: whether the last changes of weights took more than they should.
    """

    job: ResolvedJob
    actors: Actors
    log: EventLog
    stop: Callable[[], bool]
    look: Callable[[], None] = lambda: None
    keep: Callable[[], None] = lambda: None
    held: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    spent: bool = False
    swaps: bool = False
    large_deltas: bool = False

    def start(self, calls: BatchCalls, stages: Iterable[str]) -> None:
        """Begin these stages of the batch: feed, generate, reward, those of inference and of training."""
        stages = list(stages)
        self.keep()
        if "generate" in stages:
            if self.spent and self.swaps:
                self.sync(self.held)
            self.spent = calls.batch.kind == "train"
        for stage in stages:
            calls.of_stage[stage] = self._start(stage, calls)
            calls.devices[stage] = self._devices(stage)

    def account(self, calls: BatchCalls, members: Sequence[Member], others: Sequence[Any]) -> None:
        """Ask devices, and others who move rows, what the batch took; they answer after what they do."""
        for member in members:
            calls.peaks[member.role.rank] = member.worker.peaks()
        profile = self.job.spec.profile
        if profile and {calls.batch.step, calls.batch.step - 1} & {*profile.steps}:
            recording = [m.worker for m in members if m.role.rank in profile.ranks]
            calls.traces += [worker.traces() for worker in recording]
        calls.traffic += [worker.traffic() for worker in others]
        for member in members:
            calls.moved[member.role.rank] = member.worker.traffic()

    def account_anew(self, calls: BatchCalls) -> None:
        """Ask those who live; whoever was asked before may have died."""
        calls.peaks, calls.traffic, calls.moved, calls.traces = {}, [], {}, []
        actors = self.actors
        self.account(calls, actors.members, [actors.feeder, *actors.rewards])

    def finish(self, calls: BatchCalls, stages: Sequence[str]) -> None:
        """Wait for stages that were started; a failure of any call of the batch ends the wait."""
        for stage in stages:
            self.wait(stage, calls.of_stage[stage], beside=calls.all())

    def tell(self, calls: BatchCalls) -> None:
        """Write when each stage ran, and errors of rewards. All calls must have ended."""
        batch, held_out = calls.batch, calls.batch.kind == "eval"
        for stage in ("generate", *INFERENCE_STATES, "compare", "reward", *TRAINING_STATES):
            spans = [getattr(report, "span", report) for report in calls.reports(stage)]
            self.spans(stage, batch.step, spans, calls.devices.get(stage, []), held_out)
        write_reward_errors(self.log, batch, calls.reports("reward"))

    def settle(self, calls: BatchCalls) -> bool:
        """Drop a batch that cannot go on, with its pools, and say whether it was trained on all the same.

        The update ranks agree before the first of them trains, so all have trained or none has.
        """
        self.drop(calls)
        return self.trained_on(calls)

    def trained_on(self, calls: BatchCalls) -> bool:
        """Whether the update ranks have trained on a batch that was dropped, once they know."""
        updates = calls.of_stage.get("update", [])
        self.ended("update", updates)
        trained = len(calls.reports("update"))
        if trained not in (0, len(updates)):
            raise WorkerError(
                f"{trained} of {len(updates)} update ranks trained on {calls.batch}; their weights "
                "differ now; resume from the last checkpoint"
            )
        return trained > 0

    def drop(self, calls: BatchCalls) -> None:
        """Free the rows of a batch that cannot go on, with its pools; who waits for them hears of it."""
        self.wait_for_warehouses()
        now = calls.now
        pools = (now.pool, now.next_pool) if isinstance(now, Round) else ()
        for batch in (calls.batch, *pools, *calls.beside):
            with contextlib.suppress(DockError):  # who is gone holds nothing that could be dropped
                drop = [self.actors.feeder.drop(batch)]
                self.wait("drop", drop, interruptible=False)

    def sync(self, version: int) -> None:
        """Give the rollout layout the update layout's weights; every engine must hold the same. Nobody takes
        them where nothing is generated."""
        if "generate" not in self.job.spec.states:
            self.held = version
            return
        calls = [worker.sync(version) for worker in self.actors.devices]
        reports = self.wait("sync", calls, interruptible=False)
        devices = [member.role.rank for member in self.actors.members]
        self.spans("sync", max(version, 1), [report.span for report in reports], devices)
        check_sums(version, reports)
        moved = [report.reshard for report in reports if report.reshard]
        if moved:
            self._tell_moves(reshard_event(version, moved))
        self.swaps = any(report.rests for report in reports)
        self.held, self.spent = version, False

    def send(self, version: int) -> list[Call]:
        """Begin to send the update layout's weights to rollout devices that go on generating."""
        return [worker.send(version) for worker in self.actors.updating()]

    def switch(self, version: int) -> list[Call]:
        """Let the rollout devices switch to what was sent, once they have generated what they generate now at
        the latest; devices that share a model at the same place in their work."""
        return [worker.switch(version) for worker in self.actors.generating()]

    def switched(self, version: int, reports: Sequence[Any]) -> None:
        """Note that they have. reports: of all devices that sent or switched."""
        check_sums(version, reports)
        figures = [report.in_flight for report in reports if report.in_flight]
        self._tell_moves(in_flight_event(version, figures))
        self.held = version

    def _tell_moves(self, event: ReshardEvent | InFlightEvent) -> None:
        self.log.write(event)
        told = large_deltas(event)
        if told and not self.large_deltas:  # once, until they are small again
            self.log.write(WarningEvent(step=event.step, message=told))
        self.large_deltas = bool(told)

    def wait_for_warehouses(self) -> None:
        """Until each answers, or the run is to stop: a lost one is placed and started again, by Ray."""
        limit = self.job.spec.flow.stage_timeout_seconds
        deadline = monotonic() + limit
        for index, warehouse in enumerate(self.actors.warehouses):
            while True:
                try:
                    answers("warehouse", [warehouse.address()], seconds=WAREHOUSE_ANSWER_SECONDS)
                    break
                except RljobError as error:
                    if self.stop():
                        return
                    if monotonic() > deadline:
                        raise DeadlineError(
                            f"warehouse {index} did not come back within {limit:.0f} s "
                            "(spec.flow.stageTimeoutSeconds)",
                            stage="warehouse",
                        ) from error
                    sleep(0.5)

    def spans(
        self,
        stage: str,
        step: int,
        spans: Sequence[StageSpan | None],
        devices: Sequence[int],
        held_out: bool = False,
    ) -> None:
        """Write when a stage ran on each worker, and keep the slowest's seconds for the step."""
        slowest = write_spans(
            self.log,
            self.job,
            stage=stage,
            step=step,
            spans=spans,
            devices=devices,
            held_out=held_out,
        )
        if slowest is not None and not held_out:
            self.phases[stage] = slowest

    def take_phases(self) -> dict[str, float]:
        """The stages' seconds since the last call."""
        taken, self.phases = self.phases, {}
        return taken

    def wait(
        self,
        stage: str,
        calls: Sequence[Call],
        *,
        beside: Sequence[Call] = (),
        interruptible: bool = True,
    ) -> list[Any]:
        """Results of the calls, in order; looks at the stop flag and the deadline meanwhile.

        beside: calls that run at the same time. The first that fails ends the wait: others may be
        waiting for its rows.
        """
        deadline = monotonic() + self.job.spec.flow.stage_timeout_seconds
        pending = list(calls)
        while pending:
            self.look()
            done, pending = ended_of(pending, seconds=0.1, until=FIRST_EXCEPTION)
            results(done)  # a failure of one shows at once, not when the last has ended
            ended, beside = ended_of(beside)
            results(ended)
            if pending and interruptible and self.stop():
                raise Interrupted(stage)
            if pending and monotonic() > deadline:
                raise self.late(stage, len(pending), len(calls))
        return results(calls)

    def ended(self, stage: str, calls: Sequence[Call]) -> None:
        """Wait until the calls have ended, well or not."""
        seconds = self.job.spec.flow.stage_timeout_seconds
        _, pending = ended_of(calls, seconds=seconds, until=ALL_COMPLETED)
        if pending:
            raise self.late(stage, len(pending), len(calls))

    def late(self, stage: str, missing: int, calls: int) -> DeadlineError:
        """The error of a stage that took too long."""
        return DeadlineError(
            f"stage {stage}: {missing} of {calls} workers did not finish within "
            f"{self.job.spec.flow.stage_timeout_seconds:.0f} s (spec.flow.stageTimeoutSeconds)",
            stage=stage,
        )

    def _devices(self, stage: str) -> list[int]:
        """That `_start` asks, in its order."""
        if stage in ("feed", "reward"):
            return []
        generates = stage == "generate"
        members = self.actors.rollout_members() if generates else self.actors.update_members()
        return [member.role.rank for member in members]

    def _start(self, stage: str, calls: BatchCalls) -> list[Call]:
        actors, batch, now = self.actors, calls.batch, calls.now
        if isinstance(now, CandidateRound):
            if stage == "feed" and now.pool is None:
                return [actors.feeder.feed_candidates(now, self.held)]
            if stage == "reward":
                return [worker.select(now) for worker in actors.rewards[:1]]
            if stage in INFERENCE_STATES:
                return [worker.infer(stage, batch, now.groups) for worker in actors.updating()]
            now = now.pool
        if stage == "feed":
            if now:
                return [actors.feeder.feed_pool(now, self.held)]
            chosen = (calls.positions,) if calls.positions else ()
            return [actors.feeder.feed(batch, self.held, *chosen)]
        if stage == "generate":
            workers, each = actors.generating(), self.job.spec.rollout.parallelism.replica_devices
            replicas = len(workers) // each
            shares = [(worker, (rank // each, replicas)) for rank, worker in enumerate(workers)]
            if now:
                return [w.partial_rollout(batch, now, share) for w, share in shares]
            return [w.generate(batch, share) for w, share in shares]
        if stage == "reward":
            return [worker.score(batch) for worker in actors.rewards]
        if stage in INFERENCE_STATES:
            return [worker.infer(stage, batch) for worker in actors.updating()]
        assert stage in ("compare", *TRAINING_STATES), f"no stage {stage}"
        return [getattr(worker, stage)(batch) for worker in actors.updating()]
