"""The driver: where a run stands, and what its steps have in common. The loop over steps is `loop`'s.

Asks `stages` for the work of a batch; reports go to `metrics`, events to the log, checkpoints to the store.
Made by `launch`.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ALL_COMPLETED
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import CheckpointDamaged, DockError, RljobError, WorkerError
from rljob_runtime.processes.calls import ended_of
from rljob_runtime.processes.clock import unix_seconds
from rljob_runtime.processes.placement import Actors
from rljob_runtime.processes.workers import Call
from rljob_runtime.prompts.schedule import PromptState, Schedule
from rljob_runtime.prompts.schedule_table import schedule_of
from rljob_runtime.record.checkpoint import (
    STATE_FILE,
    CheckpointStore,
    RunState,
    degrees_of,
    read_state,
    step_of,
)
from rljob_runtime.record.checksums import check_files
from rljob_runtime.record.digests import digest_of
from rljob_runtime.record.dock_events import dock_event, reason_of
from rljob_runtime.record.event_types import CheckpointEvent, ResizeEvent, WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.folders import folder_for_all
from rljob_runtime.record.metrics import (
    EvaluationResult,
    evaluation_metrics,
    pair_metrics,
    step_metrics,
)
from rljob_runtime.record.profiles.writing import write_traces
from rljob_runtime.run.alarm_actions import AlarmActions
from rljob_runtime.run.alarm_watch import AlarmWatch
from rljob_runtime.run.early_stopping import EarlyStopping
from rljob_runtime.run.elastic import Elastic
from rljob_runtime.run.left_out import LeftOut
from rljob_runtime.run.lost_rollouts import LostRollouts
from rljob_runtime.run.row_watch import Looks
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.stages import BatchCalls, Stages
from rljob_runtime.run.stragglers import Stragglers
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import evaluation_states, state_graph

MAX_STEP_ATTEMPTS = 3
DAMAGE_SECONDS = 60.0
"""For the ranks to compare checksums, once one of them could not read a checkpoint."""


class OnTheirWay(Protocol):
    """`loop.Steps`: batches by the number of their step, and how often each began."""

    batches: dict[int, BatchCalls]
    attempts: Counter[int]
    failures: Counter[int]
    marked: float


@dataclass(slots=True, kw_only=True)
class Driver:
    """One job on the actors of a run.

    stop: asked between and during stages; True ends the run at once with a checkpoint of the last
    whole step. until: the step to end after, None: the job's last. shared: all pods see the store's folder.
    requests: where other numbers of rollout devices are asked for. joined: called when new processes belong
    to the run. hung: looks into an error that a step starts over for, while those who failed to come are
    there. watch: of the dock. step: steps that are done, which is also the version of the weights. moves:
    rises for as long as the driver is not stuck. asked_to_save: set where a checkpoint is wanted after the
    present step. lives: how often devices were replaced. dropped: rows of steps that started over, by
    reason. keep: lets what is known here outlive this process. earlier: steps that another driver told,
    which died. begun: whether what comes before the first
    step is done. steps: those that are on their way. held_out: the evaluation that is.
    """

    job: ResolvedJob
    actors: Actors
    log: EventLog
    store: CheckpointStore
    shared: bool
    spec_digest: str
    course_digest: str
    stop: Callable[[], bool]
    until: int | None = None
    requests: ScaleRequests
    joined: Callable[[], None]
    watch: Looks
    hung: Callable[[Exception], object] = lambda _: None
    asked_to_save: threading.Event = field(default_factory=threading.Event)
    step: int = 0
    lives: int = 0
    moves: int = 0
    dropped: dict[int, Counter[str]] = field(default_factory=dict)
    keep: Callable[[], None] = lambda: None
    earlier: int = 0
    begun: bool = False
    steps: OnTheirWay | None = None
    held_out: BatchName | None = None
    resized: ResizeEvent | None = None
    """Devices came or left, and the event was perhaps not written."""
    schedule: Schedule = field(init=False)
    evaluated: list[int] = field(default_factory=list)
    """Steps after which an evaluation was made here."""
    step_seconds: list[float] = field(default_factory=list)
    stages: Stages = field(init=False)
    elastic: Elastic = field(init=False)
    alarm_actions: AlarmActions = field(init=False)
    stragglers: Stragglers = field(init=False)
    left_out: LeftOut = field(init=False)
    lost_rollouts: LostRollouts = field(init=False)
    early_stopping: EarlyStopping = field(init=False)
    chains: dict[int, str] = field(default_factory=dict)
    """Of the last two steps that were told, and of the checkpoint that the run went on from (`digests`)."""
    before: PromptState | None = field(init=False, default=None)
    """What the schedule was before the last step, where that was trained here."""

    def __post_init__(self) -> None:
        self.schedule = schedule_of(self.job.spec)
        self.stages = Stages(job=self.job, actors=self.actors, log=self.log, stop=self.stop)
        self.elastic = Elastic(
            job=self.job,
            actors=self.actors,
            requests=self.requests,
            log=self.log,
            sync=lambda: self.stages.sync(self.step),
            joined=self.joined,
            told=self.tell_resize,
            hung=self.hung,
        )
        self.stages.look = self.look
        self.stages.keep = lambda: self.keep()
        watch = AlarmWatch.of(self.job.spec)
        self.alarm_actions = AlarmActions(watch=watch, log=self.log, store=self.store)
        self.stragglers = Stragglers(job=self.job, actors=self.actors, log=self.log)
        self.left_out = LeftOut(job=self.job, actors=self.actors, log=self.log, moves=self.move)
        self.lost_rollouts = LostRollouts(
            actors=self.actors, elastic=self.elastic, log=self.log, moves=self.move
        )
        self.early_stopping = EarlyStopping.of(self.job.spec, log=self.log, store=self.store)

    def tell_resize(self, event: ResizeEvent) -> None:
        """Devices have come or left: kept before it is told, so that both are known, or none."""
        self.resized = event
        self.keep()
        self.log.write(event)
        self.resized = None

    def look(self) -> None:
        """While something is waited for: devices may come and go. Never waits."""
        self.move()
        self.elastic.look()

    def move(self) -> None:
        """Say that the driver is not stuck."""
        self.moves += 1

    @property
    def told(self) -> int:
        """Steps that were told, those that were trained again, too."""
        return self.earlier + len(self.step_seconds)

    @property
    def steps_left(self) -> bool:
        """Whether another step is to be trained."""
        return self.step < self.last_step and not self.early_stopping.ends_early

    @property
    def last_step(self) -> int:
        """The step that the run ends after."""
        return min(self.job.spec.steps, self.until or self.job.spec.steps)

    def between_steps(self) -> None:
        """Evaluate and save where the step that has just ended asks for it."""
        if self.evaluation_due:
            self.evaluate()
        if self.save_due and not self.store.path(self.step).exists():
            self.save()

    @property
    def evaluation_due(self) -> bool:
        """Whether the last step asks for an evaluation that was not made."""
        evaluation, made = self.job.spec.evaluation, self.evaluated
        if evaluation is None or self.step <= max(0, self.early_stopping.best.last, *made):
            return False
        return self._comes_now(evaluation.every)

    @property
    def save_due(self) -> bool:
        """Whether the last step asks for a checkpoint."""
        asked = self.early_stopping.ends_early or self.asked_to_save.is_set()
        return asked or self._comes_now(self.job.spec.checkpoint.every)

    def begin_batch(self, step: int, attempt: int) -> BatchCalls:
        """A training batch whose stages can be started."""
        each = self.job.spec.rollout.parallelism.replica_devices
        asked = self.schedule.begin(
            step,
            attempt=attempt,
            skipped=self.alarm_actions.skipped,
            replicas=len(self.actors.generating()) // each,
        )
        return BatchCalls(batch=asked.batch, now=asked.round, positions=asked.positions)

    def trained(self, calls: BatchCalls) -> None:
        """The step's batch was trained on: the step is done."""
        self.before = self.schedule.state()
        self.step = calls.batch.step
        self.schedule.trained(calls.reports("update"))

    def starts_over(self, batch: BatchName, error: DockError, failures: int) -> None:
        """Tell that a batch is generated again. failures: that its step had before. Raises the error at the
        last attempt."""
        if failures + 1 == MAX_STEP_ATTEMPTS:
            raise error
        why = getattr(error, "cause", error)  # what a worker raised comes with Ray's traceback
        self.log.write(WarningEvent(step=batch.step, message=f"{batch} starts over: {why}"))
        sizes = self.job.spec.batch
        rows = sizes.global_batch_size * sizes.samples_per_prompt
        self.dropped.setdefault(batch.step, Counter())[reason_of(error)] += rows

    def evaluate(self) -> None:
        """Sampled accuracy on all sets of held-out prompts under the present weights."""
        assert self.job.spec.evaluation is not None, "an evaluation without spec.evaluation"
        started = unix_seconds()
        own, *suites = [self._evaluated(held.name) for held in self.job.spec.evaluation.sets()]
        evaluated = replace(own, suites=tuple(suites))
        self.evaluated.append(self.step)
        self.log.write(evaluated.event(unix_seconds() - started))
        if self.early_stopping.count(evaluated) and self.step:
            if not self.store.path(self.step).exists():
                self.save()
            self.early_stopping.keep()

    def _evaluated(self, name: str) -> EvaluationResult:
        """Of one set of held-out prompts."""
        batch = BatchName(
            kind="eval",
            step=self.step,
            suite=name,
            skipped=self.alarm_actions.skipped,
            attempt=self.lives,
        )
        calls, self.held_out = BatchCalls(batch=batch), batch
        together = ["feed", *evaluation_states(self.job.spec)]
        self.stages.start(calls, together)
        try:
            self.stages.finish(calls, together)
        except WorkerError:
            self.stages.drop(calls)
            raise
        self.held_out = None
        self.stages.tell(calls)
        if self.job.spec.has_pairs:
            return pair_metrics(calls.reports("compare"), step=self.step, name=name)
        return evaluation_metrics(calls.reports("reward"), step=self.step, name=name)

    def _comes_now(self, every: int | None) -> bool:
        return self.step == self.job.spec.steps or bool(every and self.step % every == 0)

    def tell_step(self, calls: BatchCalls, seconds: float) -> None:
        """Write the step's events: what ran when, its metrics, what went through the dock, alarms. Raises
        RollBack, GuardStop."""
        stages = self.stages
        asked = dict(sorted(calls.peaks.items()))
        told = stages.wait("memory", [*asked.values()], interruptible=False)
        peaks = dict(zip(asked, told, strict=True))
        moved = stages.wait(
            "statistics", [*calls.traffic, *calls.moved.values()], interruptible=False
        )
        traces = stages.wait("profile", calls.traces, interruptible=False)
        self.step_seconds.append(seconds)  # nobody is asked from here on: a step is told once
        stages.tell(calls)
        updated = calls.reports("update")
        ranks = [report.digest for report in updated]
        digest = digest_of(ranks, previous=self.chains.get(self.step - 1, ""))
        last = {step: chain for step, chain in self.chains.items() if step == self.step - 1}
        self.chains = last | {self.step: digest.chain}
        done = step_metrics(
            self.job,
            step=self.step,
            seconds=seconds,
            recent_seconds=self.step_seconds[-20:],
            generate_reports=calls.reports("generate"),
            reward_reports=calls.reports("reward"),
            update_reports=updated,
            digest=digest,
            peaks=peaks,
            extra_metrics=self.schedule.metrics(),
            phases=stages.take_phases(),
        )
        self.log.write(done)
        self.log.write(
            dock_event(
                self.step,
                moved,
                state_graph(self.job.spec),
                warehouses=self.actors.warehouses,
                rows=self.watch.take(),
                dropped=self.dropped.pop(self.step, None),
            )
        )
        self.stragglers.look(self.step, calls)
        for recorded in traces:
            write_traces(recorded, folder=self.log.path.parent, log=self.log)
        bad_rows = [row for report in updated for row in report.bad_rows]
        found = {name: value for name, value in done.metrics.items() if value is not None}
        self.alarm_actions.look(self.step, found, bad_rows)

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint of this job, as `run_request.check_goes_on` knows it. Raises
        CheckpointError when it is damaged."""
        try:
            check_files(checkpoint, within=STATE_FILE)
        except CheckpointDamaged as damage:
            raise self._set_aside(checkpoint, damage) from None
        state = read_state(checkpoint)
        self.load(checkpoint, "resume")
        self.step = state.step
        self.alarm_actions.rollbacks, self.alarm_actions.skipped = (
            state.rollbacks,
            state.skipped_steps,
        )
        self.schedule.restore(state.prompts)

    def go_back(self) -> int:
        """To the last checkpoint, or the beginning, as though the run had resumed there: later steps are
        trained again, on the same prompts. The devices have just loaded the model. Returns the step."""
        state = None
        if latest := self.store.latest():
            self.load(latest, "resume")
            state = read_state(latest)
        self._stand(state.step if state else 0, state.prompts if state else PromptState())
        return self.step

    @property
    def can_step_back(self) -> bool:
        """Whether the last step can be trained again. Where it was saved, nothing before it is wanted."""
        return self.before is not None and self.store.last_step() != self.step

    def step_back(self) -> None:
        """To the step before the last one, which is trained again. The devices are there."""
        assert self.before is not None, "no step was trained here"
        self._stand(self.step - 1, self.before)

    def _stand(self, step: int, prompts: PromptState) -> None:
        """After an earlier step, as though no later one had been trained."""
        self.step, self.before = step, None
        self.chains = {told: chain for told, chain in self.chains.items() if told <= step}
        self.alarm_actions.watch.rewind(step)
        self.early_stopping.read(step)
        self.evaluated = [made for made in self.evaluated if made <= step]
        self.schedule.start_over()
        self.schedule.restore(prompts)

    def load(self, checkpoint: Path, stage: str) -> None:
        """Give the update ranks the models of a checkpoint. Raises CheckpointDamaged, also where another rank
        stumbled over the damaged file first; the checkpoint is then set aside."""
        folder = folder_for_all(checkpoint, shared=self.shared)
        step = step_of(checkpoint.name)
        loading = [worker.load(folder, step) for worker in self.actors.updating()]
        try:
            self.stages.wait(stage, loading, interruptible=stage == "resume")
        except RljobError as error:
            damage = self._damage(loading, error)
            if damage is None:
                raise
            raise self._set_aside(checkpoint, damage) from error
        state = read_state(checkpoint)
        self.chains = {state.step: state.chain}

    def _set_aside(self, checkpoint: Path, damage: Exception) -> CheckpointDamaged:
        step = step_of(checkpoint.name)
        assert step is not None, f"{checkpoint} is no checkpoint"
        return CheckpointDamaged(f"{damage}; it was moved to {self.store.set_aside(step).name}")

    @staticmethod
    def _damage(loading: list[Call], error: Exception) -> Exception | None:
        """What a rank says of damage; those that had not ended yet are given a while."""
        ended, _ = ended_of(loading, seconds=DAMAGE_SECONDS, until=ALL_COMPLETED)
        told = [error, *(call.exception() for call in ended)]
        return next((one for one in told if isinstance(one, CheckpointDamaged)), None)

    def save(self) -> None:
        """Checkpoint the last whole step."""
        started = unix_seconds()
        self.asked_to_save.clear()
        draft = self.store.begin(self.step)
        place = draft if self.shared else None
        saving = [worker.save(place) for worker in self.actors.updating()]
        for folder in self.stages.wait("checkpoint", saving, interruptible=False):
            folder.copy_to(draft, seconds=self.job.spec.flow.stage_timeout_seconds)
            self.moves += 1
        path = self.store.commit(
            RunState(
                step=self.step,
                seed=self.job.spec.seed,
                weight_version=self.step,
                dock_rows=0,
                spec_digest=self.spec_digest,
                course_digest=self.course_digest,
                degrees=degrees_of(self.job.spec),
                rollbacks=self.alarm_actions.rollbacks,
                skipped_steps=self.alarm_actions.skipped,
                chain=self.chains.get(self.step, ""),
                **asdict(self.schedule.state()),
            )
        )
        seconds = unix_seconds() - started
        self.log.write(CheckpointEvent(step=self.step, path=str(path), seconds=seconds))
