"""The stages of a batch as calls on the actors: started, awaited, and settled when one fails.

The driver and its loop over steps call it. It moves no sample data: it names batches, and the workers claim
their rows in the dock.
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
    """The user asked to stop. A resumed run repeats what was not finished."""


@dataclass(slots=True, kw_only=True)
class BatchCalls:
    """The calls of one batch by stage; a stage that was not started is missing.

    round: the round of a partial rollout or of dynamic sampling that makes the batch. positions: those of its
    prompts, if a difficulty filter chooses them. related_batches: other batches of the step, which are lost
    together with this one. devices: numbers of the devices, in the order of the calls in `of_stage`. peaks:
    calls for the memory peak of each device, by its number. moved: calls for each device's dock traffic;
    traffic: calls for that of other workers. traces: calls for the profiles of devices that record this step,
    or the sync after the step before.
    """

    batch: BatchName
    round: Round | CandidateRound | None = None
    positions: tuple[int, ...] = ()
    related_batches: list[BatchName] = field(default_factory=list)
    of_stage: dict[str, list[Call]] = field(default_factory=dict)
    devices: dict[str, list[int]] = field(default_factory=dict)
    peaks: dict[int, Call] = field(default_factory=dict)
    moved: dict[int, Call] = field(default_factory=dict)
    traffic: list[Call] = field(default_factory=list)
    traces: list[Call] = field(default_factory=list)

    def all(self) -> list[Call]:
        """Return the calls of all stages."""
        return [call for calls in self.of_stage.values() for call in calls]

    def reports(self, stage: str) -> list[Any]:
        """Return what the stage's calls returned, without those that failed. All calls must have ended."""
        returned = []
        for call in self.of_stage.get(stage, []):
            try:
                returned += results([call])
            except RljobError:
                continue
        return returned


def check_sums(version: int, reports: Sequence[Any]) -> None:
    """Raise WorkerError if devices hold different weights of the same version."""
    sums = {report.checksum for report in reports if report.checksum}
    if len(sums) > 1:
        raise WorkerError(
            f"weights version {version} differ between devices after the sync: "
            f"checksums {sorted(sums)}; the run stops, resume from the last checkpoint"
        )


@dataclass(slots=True, kw_only=True)
class Stages:
    """The work that a run requests from its workers.

    stop: polled during waits; True ends them with Interrupted. poll: called while waiting. persist: called
    before workers start on a batch, when the batch's calls already have their parameters. rollout_version:
    version of the weights on the rollout devices, which is the number of steps that made them. phases:
    seconds of the slowest worker in each stage since the last `take_phases`. generated_since_sync: whether a
    training batch was generated since the last sync. After one, devices that swap hold the update's weights.
    swaps: whether they swap. large_deltas: whether the last changes of weights took more than they should.
    """

    job: ResolvedJob
    actors: Actors
    log: EventLog
    stop: Callable[[], bool]
    poll: Callable[[], None] = lambda: None
    persist: Callable[[], None] = lambda: None
    rollout_version: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    generated_since_sync: bool = False
    swaps: bool = False
    large_deltas: bool = False

    def start(self, calls: BatchCalls, stages: Iterable[str]) -> None:
        """Start these stages of the batch: feed, generate, reward, those of inference and of training."""
        stages = list(stages)
        self.persist()
        if "generate" in stages:
            if self.generated_since_sync and self.swaps:
                self.sync(self.rollout_version)
            self.generated_since_sync = calls.batch.kind == "train"
        for stage in stages:
            calls.of_stage[stage] = self._start_stage(stage, calls)
            calls.devices[stage] = self._devices_of(stage)

    def request_statistics(
        self, calls: BatchCalls, members: Sequence[Member], others: Sequence[Any]
    ) -> None:
        """Request from devices, and from other workers that move rows, the batch's statistics. They answer
        after the work that is already queued."""
        for member in members:
            calls.peaks[member.role.rank] = member.worker.peaks()
        profile = self.job.spec.profile
        if profile and {calls.batch.step, calls.batch.step - 1} & {*profile.steps}:
            recording = [m.worker for m in members if m.role.rank in profile.ranks]
            calls.traces += [worker.traces() for worker in recording]
        calls.traffic += [worker.traffic() for worker in others]
        for member in members:
            calls.moved[member.role.rank] = member.worker.traffic()

    def request_statistics_again(self, calls: BatchCalls) -> None:
        """Request the statistics from the workers that live now; some that got the first request may have
        died."""
        calls.peaks, calls.traffic, calls.moved, calls.traces = {}, [], {}, []
        actors = self.actors
        self.request_statistics(calls, actors.members, [actors.feeder, *actors.rewards])

    def finish(self, calls: BatchCalls, stages: Sequence[str]) -> None:
        """Wait for stages that were started. A failure of any call of the batch ends the wait."""
        for stage in stages:
            self.wait(stage, calls.of_stage[stage], concurrent=calls.all())

    def write_events(self, calls: BatchCalls) -> None:
        """Write when each stage ran, and the errors of rewards. All calls must have ended."""
        batch, held_out = calls.batch, calls.batch.kind == "eval"
        for stage in ("generate", *INFERENCE_STATES, "compare", "reward", *TRAINING_STATES):
            spans = [getattr(report, "span", report) for report in calls.reports(stage)]
            self.spans(stage, batch.step, spans, calls.devices.get(stage, []), held_out)
        write_reward_errors(self.log, batch, calls.reports("reward"))

    def settle(self, calls: BatchCalls) -> bool:
        """Drop a batch that cannot continue, with its pools, and return whether it was trained on all the
        same.

        The update ranks agree before the first of them trains, so either all have trained or none has.
        """
        self.drop(calls)
        return self.trained_on(calls)

    def trained_on(self, calls: BatchCalls) -> bool:
        """Return whether the update ranks trained on a batch that was dropped, once their calls have
        ended."""
        updates = calls.of_stage.get("update", [])
        self.wait_until_ended("update", updates)
        trained = len(calls.reports("update"))
        if trained not in (0, len(updates)):
            raise WorkerError(
                f"{trained} of {len(updates)} update ranks trained on {calls.batch}; their weights "
                "differ now; resume from the last checkpoint"
            )
        return trained > 0

    def drop(self, calls: BatchCalls) -> None:
        """Free the rows of a batch that cannot continue, with its pools. Claims that wait for these rows
        fail."""
        self.wait_for_warehouses()
        current_round = calls.round
        pools = (
            (current_round.pool, current_round.next_pool)
            if isinstance(current_round, Round)
            else ()
        )
        for batch in (calls.batch, *pools, *calls.related_batches):
            with contextlib.suppress(DockError):  # a server that is gone has nothing to drop
                drop = [self.actors.feeder.drop(batch)]
                self.wait("drop", drop, interruptible=False)

    def sync(self, version: int) -> None:
        """Give the rollout layout the update layout's weights, and check that all engines have the same.
        Without a `generate` state, no device takes them."""
        if "generate" not in self.job.spec.states:
            self.rollout_version = version
            return
        calls = [worker.sync(version) for worker in self.actors.devices]
        reports = self.wait("sync", calls, interruptible=False)
        devices = [member.role.rank for member in self.actors.members]
        self.spans("sync", max(version, 1), [report.span for report in reports], devices)
        check_sums(version, reports)
        moved = [report.reshard for report in reports if report.reshard]
        if moved:
            self._write_transfer(reshard_event(version, moved))
        self.swaps = any(report.rests for report in reports)
        self.rollout_version, self.generated_since_sync = version, False

    def send(self, version: int) -> list[Call]:
        """Start to send the update layout's weights to rollout devices that continue to generate."""
        return [worker.send(version) for worker in self.actors.updating()]

    def switch(self, version: int) -> list[Call]:
        """Let the rollout devices switch to the weights that were sent, at the latest after the batch that
        they generate now. Devices that share a model switch at the same point of their work."""
        return [worker.switch(version) for worker in self.actors.generating()]

    def switched(self, version: int, reports: Sequence[Any]) -> None:
        """Record that the rollout devices have switched. reports: of all devices that sent or switched."""
        check_sums(version, reports)
        figures = [report.in_flight for report in reports if report.in_flight]
        self._write_transfer(in_flight_event(version, figures))
        self.rollout_version = version

    def _write_transfer(self, event: ReshardEvent | InFlightEvent) -> None:
        self.log.write(event)
        warning = large_deltas(event)
        if warning and not self.large_deltas:  # once, until they are small again
            self.log.write(WarningEvent(step=event.step, message=warning))
        self.large_deltas = bool(warning)

    def wait_for_warehouses(self) -> None:
        """Wait until each warehouse answers, or the run is to stop. Ray places and restarts a lost one."""
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
        """Write when a stage ran on each worker, and store the slowest worker's seconds for the step."""
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
        """Return the stages' seconds since the last call, and reset them."""
        taken, self.phases = self.phases, {}
        return taken

    def wait(
        self,
        stage: str,
        calls: Sequence[Call],
        *,
        concurrent: Sequence[Call] = (),
        interruptible: bool = True,
    ) -> list[Any]:
        """Return the results of the calls, in order. Polls the stop flag and the deadline while it waits.

        concurrent: calls that run at the same time. The first that fails ends the wait: others may be waiting
        for its rows.
        """
        deadline = monotonic() + self.job.spec.flow.stage_timeout_seconds
        pending = list(calls)
        while pending:
            self.poll()
            done, pending = ended_of(pending, seconds=0.1, until=FIRST_EXCEPTION)
            results(done)  # raises when one call has failed, before the last has ended
            ended, concurrent = ended_of(concurrent)
            results(ended)
            if pending and interruptible and self.stop():
                raise Interrupted(stage)
            if pending and monotonic() > deadline:
                raise self.timeout_error(stage, len(pending), len(calls))
        return results(calls)

    def wait_until_ended(self, stage: str, calls: Sequence[Call]) -> None:
        """Wait until all calls have ended, whether they succeeded or failed."""
        seconds = self.job.spec.flow.stage_timeout_seconds
        _, pending = ended_of(calls, seconds=seconds, until=ALL_COMPLETED)
        if pending:
            raise self.timeout_error(stage, len(pending), len(calls))

    def timeout_error(self, stage: str, missing: int, calls: int) -> DeadlineError:
        """Return the error of a stage that took too long."""
        return DeadlineError(
            f"stage {stage}: {missing} of {calls} workers did not finish within "
            f"{self.job.spec.flow.stage_timeout_seconds:.0f} s (spec.flow.stageTimeoutSeconds)",
            stage=stage,
        )

    def _devices_of(self, stage: str) -> list[int]:
        """Return the numbers of the devices that `_start_stage` calls, in its order."""
        if stage in ("feed", "reward"):
            return []
        generates = stage == "generate"
        members = self.actors.rollout_members() if generates else self.actors.update_members()
        return [member.role.rank for member in members]

    def _start_stage(self, stage: str, calls: BatchCalls) -> list[Call]:
        actors, batch, current_round = self.actors, calls.batch, calls.round
        if isinstance(current_round, CandidateRound):
            if stage == "feed" and current_round.pool is None:
                return [actors.feeder.feed_candidates(current_round, self.rollout_version)]
            if stage == "reward":
                return [worker.select(current_round) for worker in actors.rewards[:1]]
            if stage in INFERENCE_STATES:
                return [
                    worker.infer(stage, batch, current_round.groups) for worker in actors.updating()
                ]
            current_round = current_round.pool
        if stage == "feed":
            if current_round:
                return [actors.feeder.feed_pool(current_round, self.rollout_version)]
            chosen = (calls.positions,) if calls.positions else ()
            return [actors.feeder.feed(batch, self.rollout_version, *chosen)]
        if stage == "generate":
            workers, replica_devices = (
                actors.generating(),
                self.job.spec.rollout.parallelism.replica_devices,
            )
            replicas = len(workers) // replica_devices
            shares = [
                (worker, (rank // replica_devices, replicas)) for rank, worker in enumerate(workers)
            ]
            if current_round:
                return [w.partial_rollout(batch, current_round, share) for w, share in shares]
            return [w.generate(batch, share) for w, share in shares]
        if stage == "reward":
            return [worker.score(batch) for worker in actors.rewards]
        if stage in INFERENCE_STATES:
            return [worker.infer(stage, batch) for worker in actors.updating()]
        assert stage in ("compare", *TRAINING_STATES), f"no stage {stage}"
        return [getattr(worker, stage)(batch) for worker in actors.updating()]
