"""The driver: the state of a run, and the operations of its steps. The loop over steps is in `loop`.

`launch` creates it. It requests the work of a batch from `stages`. Reports go to `metrics`, events to the
log, checkpoints to the store.
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
from rljob_runtime.prompts.schedule import PromptSchedule, PromptState
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
from rljob_runtime.run.elastic import RolloutScaler
from rljob_runtime.run.left_out import LeftOutDevices
from rljob_runtime.run.lost_rollouts import LostRollouts
from rljob_runtime.run.row_watch import RowSource
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.stages import BatchCalls, Stages
from rljob_runtime.run.stragglers import StragglerActions
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import evaluation_states, state_graph

MAX_STEP_ATTEMPTS = 3
DAMAGE_SECONDS = 60.0
"""How long the ranks may take to compare checksums after one of them could not read a checkpoint."""


class BatchesInFlight(Protocol):
    """`loop.StepLoop`: batches by the number of their step, and how often each step was attempted."""

    batches: dict[int, BatchCalls]
    attempts: Counter[int]
    failures: Counter[int]
    step_started_s: float


@dataclass(slots=True, kw_only=True)
class Driver:
    """One job on the actors of a run.

    stop: polled between and during stages; True ends the run with a checkpoint of the last complete step.
    until: the step to end after, None: the job's last. shared: all pods see the store's folder. requests:
    where users request another number of rollout devices. joined: called when new processes belong to the
    run. on_timeout: investigates an error that makes a step start over, while the late processes still exist.
    watch: of the dock. step: number of completed steps, which is also the version of the weights.
    progress_count: rises as long as the driver is not stuck. save_requested: set when a checkpoint is
    requested after the current step. num_recoveries: how often devices were replaced. dropped: rows of steps
    that started over, by reason. persist: stores the driver's state outside of this process. earlier_steps:
    steps reported by a driver that has died since. initialized: whether the work before the first step is
    done. steps: the batches in flight. held_out: the evaluation in flight.
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
    watch: RowSource
    on_timeout: Callable[[Exception], object] = lambda _: None
    save_requested: threading.Event = field(default_factory=threading.Event)
    step: int = 0
    num_recoveries: int = 0
    progress_count: int = 0
    dropped: dict[int, Counter[str]] = field(default_factory=dict)
    persist: Callable[[], None] = lambda: None
    earlier_steps: int = 0
    initialized: bool = False
    steps: BatchesInFlight | None = None
    held_out: BatchName | None = None
    resized: ResizeEvent | None = None
    """The event of devices that joined or left, until it is certainly written."""
    schedule: PromptSchedule = field(init=False)
    evaluated_steps: list[int] = field(default_factory=list)
    """Steps after which this driver made an evaluation."""
    step_seconds: list[float] = field(default_factory=list)
    stages: Stages = field(init=False)
    elastic: RolloutScaler = field(init=False)
    alarm_actions: AlarmActions = field(init=False)
    stragglers: StragglerActions = field(init=False)
    left_out: LeftOutDevices = field(init=False)
    lost_rollouts: LostRollouts = field(init=False)
    early_stopping: EarlyStopping = field(init=False)
    chains: dict[int, str] = field(default_factory=dict)
    """Digest chains of the last two reported steps, and of the checkpoint that the run resumed from
    (`digests`)."""
    prompts_before: PromptState | None = field(init=False, default=None)
    """The schedule's state before the last step, if this driver trained it."""

    def __post_init__(self) -> None:
        self.schedule = schedule_of(self.job.spec)
        self.stages = Stages(job=self.job, actors=self.actors, log=self.log, stop=self.stop)
        self.elastic = RolloutScaler(
            job=self.job,
            actors=self.actors,
            requests=self.requests,
            log=self.log,
            sync=lambda: self.stages.sync(self.step),
            joined=self.joined,
            report_resize=self.report_resize,
            on_timeout=self.on_timeout,
        )
        self.stages.poll = self.poll
        self.stages.persist = lambda: self.persist()
        watch = AlarmWatch.of(self.job.spec)
        self.alarm_actions = AlarmActions(watch=watch, log=self.log, store=self.store)
        self.stragglers = StragglerActions(job=self.job, actors=self.actors, log=self.log)
        self.left_out = LeftOutDevices(
            job=self.job, actors=self.actors, log=self.log, on_wait=self.count_progress
        )
        self.lost_rollouts = LostRollouts(
            actors=self.actors, elastic=self.elastic, log=self.log, on_wait=self.count_progress
        )
        self.early_stopping = EarlyStopping.of(self.job.spec, log=self.log, store=self.store)

    def report_resize(self, event: ResizeEvent) -> None:
        """Write the event of devices that joined or left. The state is stored first, so that a new driver
        finds both or neither."""
        self.resized = event
        self.persist()
        self.log.write(event)
        self.resized = None

    def poll(self) -> None:
        """Let rollout devices join and leave. Called while the driver waits; never waits itself."""
        self.count_progress()
        self.elastic.poll()

    def count_progress(self) -> None:
        """Record that the driver is not stuck."""
        self.progress_count += 1

    @property
    def num_reported_steps(self) -> int:
        """Number of steps that were reported, with those that were trained again."""
        return self.earlier_steps + len(self.step_seconds)

    @property
    def steps_left(self) -> bool:
        """Whether another step is to be trained."""
        return self.step < self.last_step and not self.early_stopping.ends_early

    @property
    def last_step(self) -> int:
        """Number of the step that the run ends after."""
        return min(self.job.spec.steps, self.until or self.job.spec.steps)

    def between_steps(self) -> None:
        """Evaluate and save if the step that has just ended requires it."""
        if self.evaluation_due:
            self.evaluate()
        if self.save_due and not self.store.path(self.step).exists():
            self.save()

    @property
    def evaluation_due(self) -> bool:
        """Whether the last step requires an evaluation that was not made."""
        evaluation, done = self.job.spec.evaluation, self.evaluated_steps
        if evaluation is None or self.step <= max(0, self.early_stopping.best.last, *done):
            return False
        return self._is_due(evaluation.every)

    @property
    def save_due(self) -> bool:
        """Whether the last step requires a checkpoint."""
        requested = self.early_stopping.ends_early or self.save_requested.is_set()
        return requested or self._is_due(self.job.spec.checkpoint.every)

    def begin_batch(self, step: int, attempt: int) -> BatchCalls:
        """Return a training batch whose stages can be started."""
        replica_devices = self.job.spec.rollout.parallelism.replica_devices
        planned = self.schedule.begin(
            step,
            attempt=attempt,
            skipped=self.alarm_actions.skipped,
            replicas=len(self.actors.generating()) // replica_devices,
        )
        return BatchCalls(batch=planned.batch, round=planned.round, positions=planned.positions)

    def batch_trained(self, calls: BatchCalls) -> None:
        """Count the step of a batch that was trained on as done."""
        self.prompts_before = self.schedule.state()
        self.step = calls.batch.step
        self.schedule.finish_step(calls.reports("update"))

    def restart_batch(self, batch: BatchName, error: DockError, failures: int) -> None:
        """Report that a batch is generated again. failures: how often the batches of its step failed before.
        Raises the error at the last attempt."""
        if failures + 1 == MAX_STEP_ATTEMPTS:
            raise error
        cause = getattr(error, "cause", error)  # a worker's error is wrapped in Ray's traceback
        self.log.write(WarningEvent(step=batch.step, message=f"{batch} starts over: {cause}"))
        sizes = self.job.spec.batch
        rows = sizes.global_batch_size * sizes.samples_per_prompt
        self.dropped.setdefault(batch.step, Counter())[reason_of(error)] += rows

    def evaluate(self) -> None:
        """Measure the sampled accuracy on all sets of held-out prompts under the current weights."""
        assert self.job.spec.evaluation is not None, "an evaluation without spec.evaluation"
        started = unix_seconds()
        first_set, *suites = [
            self._evaluate_set(prompt_set.name) for prompt_set in self.job.spec.evaluation.sets()
        ]
        evaluated = replace(first_set, suites=tuple(suites))
        self.evaluated_steps.append(self.step)
        self.log.write(evaluated.event(unix_seconds() - started))
        if self.early_stopping.count(evaluated) and self.step:
            if not self.store.path(self.step).exists():
                self.save()
            self.early_stopping.keep_best()

    def _evaluate_set(self, name: str) -> EvaluationResult:
        """Evaluate the policy on one set of held-out prompts."""
        batch = BatchName(
            kind="eval",
            step=self.step,
            suite=name,
            skipped=self.alarm_actions.skipped,
            attempt=self.num_recoveries,
        )
        calls, self.held_out = BatchCalls(batch=batch), batch
        states = ["feed", *evaluation_states(self.job.spec)]
        self.stages.start(calls, states)
        try:
            self.stages.finish(calls, states)
        except WorkerError:
            self.stages.drop(calls)
            raise
        self.held_out = None
        self.stages.write_events(calls)
        if self.job.spec.has_pairs:
            return pair_metrics(calls.reports("compare"), step=self.step, name=name)
        return evaluation_metrics(calls.reports("reward"), step=self.step, name=name)

    def _is_due(self, every: int | None) -> bool:
        return self.step == self.job.spec.steps or bool(every and self.step % every == 0)

    def report_step(self, calls: BatchCalls, seconds: float) -> None:
        """Write the step's events: stage times, metrics, dock traffic and alarms. Raises RollBack,
        GuardStop."""
        stages = self.stages
        peak_calls = dict(sorted(calls.peaks.items()))
        peak_bytes = stages.wait("memory", [*peak_calls.values()], interruptible=False)
        peaks = dict(zip(peak_calls, peak_bytes, strict=True))
        moved = stages.wait(
            "statistics", [*calls.traffic, *calls.moved.values()], interruptible=False
        )
        traces = stages.wait("profile", calls.traces, interruptible=False)
        self.step_seconds.append(
            seconds
        )  # no call is made after this line, so a step is reported once
        stages.write_events(calls)
        updated = calls.reports("update")
        ranks = [report.digest for report in updated]
        digest = digest_of(ranks, previous=self.chains.get(self.step - 1, ""))
        last = {step: chain for step, chain in self.chains.items() if step == self.step - 1}
        self.chains = last | {self.step: digest.chain}
        step_event = step_metrics(
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
        self.log.write(step_event)
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
        self.stragglers.observe(self.step, calls)
        for recorded in traces:
            write_traces(recorded, folder=self.log.path.parent, log=self.log)
        bad_rows = [row for report in updated for row in report.bad_rows]
        metrics = {name: value for name, value in step_event.metrics.items() if value is not None}
        self.alarm_actions.observe(self.step, metrics, bad_rows)

    def resume(self, checkpoint: Path) -> None:
        """Resume from a checkpoint of this job, which `run_request.check_goes_on` has accepted. Raises
        CheckpointError if it is damaged."""
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
        """Return to the last checkpoint or the beginning, as if the run had resumed there, and return its
        step. Later steps are trained again on the same prompts. The devices must have just loaded the
        model."""
        state = None
        if latest := self.store.latest():
            self.load(latest, "resume")
            state = read_state(latest)
        self._return_to(state.step if state else 0, state.prompts if state else PromptState())
        return self.step

    @property
    def can_step_back(self) -> bool:
        """Whether the last step can be trained again. False after a checkpoint of that step: nothing before
        it is needed."""
        return self.prompts_before is not None and self.store.last_step() != self.step

    def step_back(self) -> None:
        """Return to the step before the last one, which is trained again. The devices already have that
        state."""
        assert self.prompts_before is not None, "no step was trained here"
        self._return_to(self.step - 1, self.prompts_before)

    def _return_to(self, step: int, prompts: PromptState) -> None:
        """Set the driver's state to that after an earlier step, as if no later one had been trained."""
        self.step, self.prompts_before = step, None
        self.chains = {number: chain for number, chain in self.chains.items() if number <= step}
        self.alarm_actions.watch.rewind(step)
        self.early_stopping.read(step)
        self.evaluated_steps = [done for done in self.evaluated_steps if done <= step]
        self.schedule.start_over()
        self.schedule.restore(prompts)

    def load(self, checkpoint: Path, stage: str) -> None:
        """Load the models of a checkpoint on the update ranks. Raises CheckpointDamaged, also if another rank
        found the damaged file first; the checkpoint is then set aside."""
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
        """Return the damage that a rank reports. Ranks that have not ended yet get DAMAGE_SECONDS."""
        ended, _ = ended_of(loading, seconds=DAMAGE_SECONDS, until=ALL_COMPLETED)
        errors = [error, *(call.exception() for call in ended)]
        return next((each for each in errors if isinstance(each, CheckpointDamaged)), None)

    def save(self) -> None:
        """Write a checkpoint of the last complete step."""
        started = unix_seconds()
        self.save_requested.clear()
        draft = self.store.begin(self.step)
        target_folder = draft if self.shared else None
        saving = [worker.save(target_folder) for worker in self.actors.updating()]
        for folder in self.stages.wait("checkpoint", saving, interruptible=False):
            folder.copy_to(draft, seconds=self.job.spec.flow.stage_timeout_seconds)
            self.progress_count += 1
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
