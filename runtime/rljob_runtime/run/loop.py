"""The loop over a run's steps. Called by `launch`.

feeder ──▶ dock ──▶ rollout devices ──▶ dock ──▶ rewards, models that score ──▶ dock ──▶ update devices
                           ▲                                                                    │
                           └───────────────────────────── weights ──────────────────────────────┘

Samples pass from stage to stage through the dock; this process sees none of them.

Whenever a call ends, `run_ahead` returns what may start. Generation waits until the batch that it may run
ahead of is trained on, and until the rollout devices have the weights. `sync` and `streaming` do not run
ahead. The update waits for the oldest batch that is generated, or with `streaming` is being generated.
`course` defines what the stages of a batch wait for.

A batch that the dock lost starts over, from its prompts. An alarm may roll the run back. An alarm that ends
the run leaves the checkpoint of the last complete step to `launch`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rljob_api.topology.devices import most_ahead, updates_in_flight
from rljob_runtime.errors import DockError, WorkerError
from rljob_runtime.processes.calls import ended_of, results
from rljob_runtime.processes.clock import monotonic, unix_seconds
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.checkpoint import read_state
from rljob_runtime.run import course
from rljob_runtime.run.alarm_actions import RollBack
from rljob_runtime.run.course import PendingCalls
from rljob_runtime.run.delivery import Delivery
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.left_out import DevicesReturned
from rljob_runtime.run.recovery import Recovery, RecoveryCause
from rljob_runtime.run.run_ahead import Action, RunAhead
from rljob_runtime.run.stages import BatchCalls, Interrupted
from rljob_runtime.run.stragglers import LeaveSlow
from rljob_runtime.run.succession import Takeover
from rljob_runtime.samples.batches import BatchName

TICK_SECONDS = 0.1


def run_steps(driver: Driver, takeover: Takeover | None = None) -> None:
    """Train until the last step. Raises Interrupted, RljobError, and GuardStop at an alarm. takeover: from a
    driver that died."""
    driver.early_stopping.read(driver.step)
    recovery, steps = Recovery(driver), StepLoop(driver=driver)
    cause: RecoveryCause | None = None
    roll_back: RollBack | None = None
    if takeover is not None:
        steps = _taken_over_steps(driver, takeover)
        cause = recovery.cause_of_takeover(takeover)
    while driver.steps_left or not driver.initialized or cause or roll_back:
        try:
            if cause:
                steps, cause = _recover(recovery, steps, cause), None
            if roll_back:
                _roll_back(driver, roll_back)
                steps, roll_back = StepLoop(driver=driver), None
            if not driver.initialized:
                _begin_run(driver)
                driver.initialized = True
            driver.persist()
            steps.run()
        except RollBack as request:
            cause, roll_back = None, request
        except LeaveSlow as slow:
            cause = recovery.cause_of_slow(slow)
        except DevicesReturned as returned:
            cause = recovery.cause_of_return(returned)
        except WorkerError as error:
            cause = recovery.cause_of_error(error)


def _begin_run(driver: Driver) -> None:
    """Do the work that comes before the first of this driver's steps."""
    (facts,) = driver.stages.wait("feed", [driver.actors.feeder.facts()])
    driver.schedule.set_num_items(facts["train_size"])
    if driver.left_out.possible:
        driver.left_out.report(driver.step)
    driver.stages.sync(driver.step)
    if driver.job.spec.evaluation and driver.step == 0 and not driver.evaluated_steps:
        driver.evaluate()


def _taken_over_steps(driver: Driver, takeover: Takeover) -> "StepLoop":
    """Return the step loop of a driver that died, with the batches that it had in flight."""
    return StepLoop(
        driver=driver,
        batches=takeover.batches(driver),
        attempts=takeover.state.attempts,
        failures=takeover.state.failures,
        step_started_s=takeover.state.step_started_s,
    )


def _recover(recovery: Recovery, interrupted: "StepLoop", cause: RecoveryCause) -> "StepLoop":
    """Replace the dead processes, and return a step loop that repeats the interrupted steps."""
    driver, attempts = recovery.driver, interrupted.attempts
    with recovery.timed("drop"):
        recovery.replace_others(cause)
        interrupted.abandon()
    step_before = driver.step
    step = recovery.replace(cause, interrupted.lost.get(step_before + 1))
    driver.schedule.start_over(trained=step > step_before)
    for number in range(step + 1, max(step_before, interrupted.run_ahead.done) + 1):
        attempts[number] += 1
    if (
        interrupted.unreported is not None
        and interrupted.unreported.batch.step == step_before <= step
    ):
        interrupted.report_again(interrupted.unreported)
    if step > step_before:
        driver.batch_trained(interrupted.lost[step])
        interrupted.report_again(interrupted.lost[step])
    driver.stages.sync(driver.step)
    return StepLoop(driver=driver, attempts=attempts, failures=interrupted.failures)


def _roll_back(driver: Driver, roll_back: RollBack) -> None:
    """Restore weights, optimizers and position from the checkpoint. Prompts continue after those of the
    undone steps, so that the undone steps are not repeated."""
    driver.load(roll_back.checkpoint, "rollback")
    driver.step = roll_back.step
    driver.alarm_actions.watch.rewind(roll_back.step)
    driver.early_stopping.read(roll_back.step)
    driver.evaluated_steps = [done for done in driver.evaluated_steps if done <= roll_back.step]
    driver.log.already_written.clear()
    driver.schedule.roll_back(read_state(roll_back.checkpoint).prompts)
    driver.stages.sync(roll_back.step)


@dataclass(slots=True)
class ActivePhase:
    """Generation or update of a batch in flight. waits: pending calls by stage. stage: the first stage that
    has not ended. since: when it became the first, in monotonic seconds."""

    course: Iterator[PendingCalls]
    waits: PendingCalls = field(default_factory=dict)
    stage: str = ""
    since: float = 0.0


@dataclass(slots=True, kw_only=True)
class StepLoop:
    """The batches of a run that are in flight, and their active phases.

    lost: batches that were abandoned. unreported: the batch that was trained on, until its step is reported.
    ended: calls of batches in flight that have ended. attempts: of each step; failures: those that the dock
    lost. last_paused_step: the step after which all devices were last idle. step_started_s: when the current
    step began, in Unix seconds.
    """

    driver: Driver
    run_ahead: RunAhead = field(init=False)
    delivery: Delivery = field(init=False)
    batches: dict[int, BatchCalls] = field(default_factory=dict)
    active_phases: dict[Action, ActivePhase] = field(default_factory=dict)
    lost: dict[int, BatchCalls] = field(default_factory=dict)
    ended: set[Call] = field(default_factory=set)
    attempts: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    unreported: BatchCalls | None = None
    last_paused_step: int = -1
    step_started_s: float = 0.0

    def __post_init__(self) -> None:
        driver, spec = self.driver, self.driver.job.spec
        driver.steps = self
        self.run_ahead = RunAhead(
            done=driver.step,
            rollout_version=driver.stages.rollout_version,
            steps=driver.last_step,
            max_staleness=most_ahead(spec),
            in_flight=updates_in_flight(spec),
            streams=spec.flow.mode == "streaming" and not driver.schedule.in_rounds,
        )
        self.delivery = Delivery(stages=driver.stages, run_ahead=self.run_ahead)

    def run(self) -> None:
        """Train all steps that are left. Raises Interrupted, after counting a batch that was trained on as
        done, and RollBack, with no batch in flight."""
        driver, run_ahead = self.driver, self.run_ahead
        try:
            while driver.steps_left:
                self._advance()
        except (Interrupted, RollBack):
            self._settle([*self.batches])
            raise
        self.delivery.finish()
        if not run_ahead.at_rest:
            self._start(("sync", run_ahead.done))
        driver.between_steps()

    def _advance(self) -> None:
        """Start what may start, then wait until a call has ended."""
        driver, run_ahead = self.driver, self.run_ahead
        if driver.stop():  # stages that end immediately never poll it
            raise Interrupted(f"step {driver.step + 1}")
        driver.poll()
        has_stragglers = bool(driver.stragglers.due(driver.step))
        needs_pause = driver.evaluation_due or has_stragglers or bool(driver.left_out.returned)
        run_ahead.paused |= driver.elastic.has_changes or needs_pause
        if run_ahead.at_rest and (run_ahead.paused or self.last_paused_step != driver.step):
            self._pause_between_steps()
        if not driver.steps_left:  # an evaluation has ended the run
            return
        while actions := run_ahead.next():
            for action in actions:
                self._start(action)
        self._wait()
        self._advance_phases()
        self._check_deadlines()

    def abandon(self) -> None:
        """Drop all batches in flight, whatever the state of their calls, and move them to `lost`. May be
        called again after an interruption."""
        while self.batches:
            number, calls = next(iter(self.batches.items()))
            self.driver.stages.drop(calls)
            self.attempts[number] += 1
            self.lost[number] = self.batches.pop(number)

    def report_again(self, calls: BatchCalls) -> None:
        """Report a step that was trained on, after the workers that were asked for its statistics have been
        replaced."""
        self.unreported = calls
        self.driver.stages.request_statistics_again(calls)
        self._report(calls)

    def _report(self, calls: BatchCalls) -> None:
        try:
            self.driver.report_step(calls, unix_seconds() - self.step_started_s)
        except RollBack:
            self.unreported = None
            raise
        self.unreported = None
        self.driver.log.already_written.clear()
        self.driver.persist()

    def _pause_between_steps(self) -> None:
        """Do the work that needs all devices idle. Generated batches stay in the dock meanwhile. Raises
        LeaveSlow, DevicesReturned."""
        driver = self.driver
        driver.between_steps()
        driver.elastic.apply(driver.step)
        if driver.steps_left:
            driver.stragglers.raise_if_due(driver.step)
            driver.left_out.apply()
        driver.stages.take_phases()  # separate events report what the pause took
        self.run_ahead.rollout_version = driver.stages.rollout_version
        self.run_ahead.paused = False
        self.last_paused_step, self.step_started_s = driver.step, unix_seconds()
        driver.persist()

    def _start(self, action: Action) -> None:
        kind, number = action
        driver, stages = self.driver, self.driver.stages
        self.run_ahead.action_started(action)
        if kind == "sync":
            stages.sync(number)
        elif kind == "send":
            self.delivery.start(number)
        else:
            if kind == "generate":
                self.batches[number] = driver.begin_batch(number, self.attempts[number])
            phase_of = course.generation if kind == "generate" else course.update
            calls = self.batches[number]
            self.active_phases[action] = ActivePhase(phase_of(driver.schedule, stages, calls))
            self._advance_phases()
            if not (kind == "generate" and driver.schedule.in_rounds):
                self._request_statistics_early(calls, kind)

    def _request_statistics_early(self, calls: BatchCalls, phase: str) -> None:
        """Request statistics before the next batch starts if the run is asynchronous: devices would answer
        later requests after that batch."""
        if self.run_ahead.max_staleness:
            self._request_statistics(calls, phase)

    def _request_statistics(self, calls: BatchCalls, phase: str = "") -> None:
        """Request the batch's statistics from the workers of a phase, or from all workers if `phase` is
        empty."""
        actors, members = self.driver.actors, list(self.driver.actors.members)
        if phase:
            generates = phase == "generate"
            members = actors.rollout_members() if generates else actors.update_members()
        others = [] if phase == "update" else [actors.feeder, *actors.rewards]
        self.driver.stages.request_statistics(calls, members, others)

    def _wait(self) -> None:
        """Wait until a call ends, or for a tick. Raises what failed, except for DockError."""
        pending = {
            call: number
            for number, calls in self.batches.items()
            for call in calls.all()
            if call not in self.ended
        }
        awaited = [
            [call for calls in self._unfinished(phase).values() for call in calls]
            for phase in self.active_phases.values()
        ]
        done, _ = ended_of(
            [*pending, *self.delivery.pending],
            seconds=TICK_SECONDS,
            groups=[*awaited, self.delivery.pending],
        )
        self.delivery.poll()
        for call in done:
            number = pending.get(call)
            if number not in self.batches:  # of a delivery, or of a batch that has just failed
                continue
            self.ended.add(call)
            try:
                results([call])
            except DockError as error:
                self._batch_failed(number, error)

    def _advance_phases(self) -> None:
        """Start what waited for calls that have ended."""
        for action, phase in [*self.active_phases.items()]:
            while action in self.active_phases and not self._unfinished(phase):
                if (pending := next(phase.course, None)) is None:
                    del self.active_phases[action]
                    self._phase_ended(action)
                else:
                    phase.waits, phase.stage = pending, ""

    def _phase_ended(self, action: Action) -> None:
        kind, number = action
        if kind == "update":
            self._batch_updated(number)
            return
        if self.driver.schedule.in_rounds:  # its calls are only known now
            self._request_statistics_early(self.batches[number], kind)
        self.run_ahead.batch_generated(number)

    def _unfinished(self, phase: ActivePhase) -> PendingCalls:
        """Return the phase's calls that have not ended, by stage."""
        pending = {s: [c for c in calls if c not in self.ended] for s, calls in phase.waits.items()}
        return {stage: calls for stage, calls in pending.items() if calls}

    def _batch_updated(self, number: int) -> None:
        driver, run_ahead, calls = self.driver, self.run_ahead, self.batches[number]
        run_ahead.batch_updated(number)
        self._forget(number)
        driver.batch_trained(calls)
        self.unreported = calls
        if (next_ones := run_ahead.next()) and next_ones[0][0] == "sync":
            self._start(next_ones[0])
        if not run_ahead.max_staleness:
            self._request_statistics(calls)
        self._report(calls)
        self.step_started_s = unix_seconds()
        if driver.save_due and driver.steps_left and not run_ahead.at_rest:
            driver.save()

    def _batch_failed(self, number: int, error: DockError) -> None:
        """Restart the batch, unless it was trained on before it failed.

        In a partial rollout all batches in flight start over: each was made of what others left over.
        """
        driver = self.driver
        driver.on_timeout(error)
        for lost in self._settle([*self.batches] if driver.schedule.lost_together else [number]):
            driver.restart_batch(lost, error, self.failures[lost.step])
            self.failures[lost.step] += 1
            self.attempts[lost.step] += 1

    def _settle(self, numbers: list[int]) -> list[BatchName]:
        """Settle batches that cannot continue. Returns those that were not trained on."""
        if not numbers:
            return []
        batches = {number: self.batches[number] for number in sorted(numbers)}
        trained = [n for n, calls in batches.items() if self.driver.stages.settle(calls)]
        lost = [number for number in batches if number not in trained]
        for number in lost:
            self._forget(number)
            self.run_ahead.batch_failed(number)
        self.driver.schedule.start_over(trained=bool(trained))
        for number in trained:
            self._batch_updated(number)
        return [batches[number].batch for number in lost]

    def _forget(self, number: int) -> None:
        self.ended -= {*self.batches.pop(number).all()}
        self.active_phases = {
            action: phase for action, phase in self.active_phases.items() if action[1] != number
        }

    def _check_deadlines(self) -> None:
        """Raise DeadlineError if a stage takes too long, counted from the end of all stages before it."""
        stages = self.driver.stages
        for phase in self.active_phases.values():
            stage, missing = next(iter(self._unfinished(phase).items()))
            if stage != phase.stage:
                phase.stage, phase.since = stage, monotonic()
            elif monotonic() - phase.since > stages.job.spec.flow.stage_timeout_seconds:
                raise stages.timeout_error(stage, len(missing), len(phase.waits[stage]))
