"""The loop over a run's steps. Called by `launch`.

feeder ──▶ dock ──▶ rollout devices ──▶ dock ──▶ rewards, models that score ──▶ dock ──▶ update devices ▲
│ └───────────────────────────── weights ────────────────────────────┘

Samples go from stage to stage through the dock, and this process sees none of them.

Whatever ends, `run_ahead` is asked what may begin: generation waits until the batch that it may run ahead of
is trained on and the rollout devices have the weights (`sync` and `streaming` run ahead of none), the update
for the oldest batch that is generated, or with `streaming` is being generated. `course` says what the stages
of a batch wait for in there.

A batch that the dock lost starts over, from its prompts. An alarm may roll the run back; what ends it leaves
a checkpoint of the last whole step to `launch`.
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
from rljob_runtime.run.course import Waits
from rljob_runtime.run.delivery import Delivery
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.left_out import Back
from rljob_runtime.run.recovery import Dead, Recovery
from rljob_runtime.run.run_ahead import Action, RunAhead
from rljob_runtime.run.stages import BatchCalls, Interrupted
from rljob_runtime.run.stragglers import LeaveSlow
from rljob_runtime.run.succession import Taken
from rljob_runtime.samples.batches import BatchName

TICK_SECONDS = 0.1


def run_steps(driver: Driver, taken: Taken | None = None) -> None:
    """Train until the last step. Raises Interrupted, RljobError, and GuardStop at an alarm. taken: from a
    driver that died."""
    driver.early_stopping.read(driver.step)
    recovery, steps = Recovery(driver), Steps(driver=driver)
    dead: Dead | None = None
    back: RollBack | None = None
    if taken is not None:
        steps = _left_by_another(driver, taken)
        dead = recovery.driver_died(taken)
    while driver.steps_left or not driver.begun or dead or back:
        try:
            if dead:
                steps, dead = _recovered(recovery, steps, dead), None
            if back:
                _roll_back(driver, back)
                steps, back = Steps(driver=driver), None
            if not driver.begun:
                _begin(driver)
                driver.begun = True
            driver.keep()
            steps.run()
        except RollBack as asked:
            dead, back = None, asked
        except LeaveSlow as slow:
            dead = recovery.slow(slow)
        except Back as found:
            dead = recovery.back(found)
        except WorkerError as error:
            dead = recovery.dead(error)


def _begin(driver: Driver) -> None:
    """What comes before the first of this driver's steps."""
    (facts,) = driver.stages.wait("feed", [driver.actors.feeder.facts()])
    driver.schedule.sized(facts["train_size"])
    if driver.left_out.possible:
        driver.left_out.tell(driver.step)
    driver.stages.sync(driver.step)
    if driver.job.spec.evaluation and driver.step == 0 and not driver.evaluated:
        driver.evaluate()


def _left_by_another(driver: Driver, taken: Taken) -> "Steps":
    """What was on its way when the driver before this one died."""
    return Steps(
        driver=driver,
        batches=taken.batches(driver),
        attempts=taken.position.attempts,
        failures=taken.position.failures,
        marked=taken.position.marked,
    )


def _recovered(recovery: Recovery, cut: "Steps", dead: Dead) -> "Steps":
    """Replace who died, and go on with the steps that were cut."""
    driver, attempts = recovery.driver, cut.attempts
    with recovery.timed("drop"):
        recovery.replace_others(dead)
        cut.abandon()
    before = driver.step
    step = recovery.replace(dead, cut.lost.get(before + 1))
    driver.schedule.start_over(trained=step > before)
    for number in range(step + 1, max(before, cut.run_ahead.done) + 1):
        attempts[number] += 1
    if cut.untold is not None and cut.untold.batch.step == before <= step:
        cut.tell_anew(cut.untold)
    if step > before:
        driver.trained(cut.lost[step])
        cut.tell_anew(cut.lost[step])
    driver.stages.sync(driver.step)
    return Steps(driver=driver, attempts=attempts, failures=cut.failures)


def _roll_back(driver: Driver, back: RollBack) -> None:
    """Weights, optimizers and position as the checkpoint has them; prompts go on after those of the steps
    that are undone, so that these are not made again."""
    driver.load(back.checkpoint, "rollback")
    driver.step = back.step
    driver.alarm_actions.watch.rewind(back.step)
    driver.early_stopping.read(back.step)
    driver.evaluated = [made for made in driver.evaluated if made <= back.step]
    driver.log.already_written.clear()
    driver.schedule.roll_back(read_state(back.checkpoint).prompts)
    driver.stages.sync(back.step)


@dataclass(slots=True)
class Half:
    """Generation or update of a batch that is under way. waits: what it waits for. stage: the first of these
    that has not ended, since when it is."""

    course: Iterator[Waits]
    waits: Waits = field(default_factory=dict)
    stage: str = ""
    since: float = 0.0


@dataclass(slots=True, kw_only=True)
class Steps:
    """The batches of a run that are on their way, and their halves that are.

    lost: batches that were abandoned. untold: the one that was trained on, as long as its step is not told.
    ended: calls of those on their way that have. attempts: of each step; failures: those that the dock lost.
    rested: the step that all devices last stood still after. marked: when the present step began.
    """

    driver: Driver
    run_ahead: RunAhead = field(init=False)
    delivery: Delivery = field(init=False)
    batches: dict[int, BatchCalls] = field(default_factory=dict)
    halves: dict[Action, Half] = field(default_factory=dict)
    lost: dict[int, BatchCalls] = field(default_factory=dict)
    ended: set[Call] = field(default_factory=set)
    attempts: Counter[int] = field(default_factory=Counter)
    failures: Counter[int] = field(default_factory=Counter)
    untold: BatchCalls | None = None
    rested: int = -1
    marked: float = 0.0

    def __post_init__(self) -> None:
        driver, spec = self.driver, self.driver.job.spec
        driver.steps = self
        self.run_ahead = RunAhead(
            done=driver.step,
            held=driver.stages.held,
            steps=driver.last_step,
            max_staleness=most_ahead(spec),
            in_flight=updates_in_flight(spec),
            streams=spec.flow.mode == "streaming" and not driver.schedule.in_rounds,
        )
        self.delivery = Delivery(stages=driver.stages, run_ahead=self.run_ahead)

    def run(self) -> None:
        """All steps that are left. Raises Interrupted, with a batch that was trained on counted as done, and
        RollBack, with nothing on its way."""
        driver, run_ahead = self.driver, self.run_ahead
        try:
            while driver.steps_left:
                self._advance()
        except (Interrupted, RollBack):
            self._lose([*self.batches])
            raise
        self.delivery.finish()
        if not run_ahead.at_rest:
            self._begin(("sync", run_ahead.done))
        driver.between_steps()

    def _advance(self) -> None:
        """Begin what may begin, then wait until something has ended."""
        driver, run_ahead = self.driver, self.run_ahead
        if driver.stop():  # stages that end at once look at it nowhere
            raise Interrupted(f"step {driver.step + 1}")
        driver.look()
        slow = bool(driver.stragglers.due(driver.step))
        due = driver.evaluation_due or slow or bool(driver.left_out.back)
        run_ahead.paused |= driver.elastic.waits or due
        if run_ahead.at_rest and (run_ahead.paused or self.rested != driver.step):
            self._rest()
        if not driver.steps_left:  # an evaluation has ended the run
            return
        while actions := run_ahead.next():
            for action in actions:
                self._begin(action)
        self._wait()
        self._go_on()
        self._look_at_deadlines()

    def abandon(self) -> None:
        """Drop all that is on its way, whatever becomes of its calls; `lost` has it afterwards. Called again
        where it was cut short."""
        while self.batches:
            number, calls = next(iter(self.batches.items()))
            self.driver.stages.drop(calls)
            self.attempts[number] += 1
            self.lost[number] = self.batches.pop(number)

    def tell_anew(self, calls: BatchCalls) -> None:
        """Tell of a step that was trained on, once those who were asked about it have been replaced."""
        self.untold = calls
        self.driver.stages.account_anew(calls)
        self._tell(calls)

    def _tell(self, calls: BatchCalls) -> None:
        try:
            self.driver.tell_step(calls, unix_seconds() - self.marked)
        except RollBack:
            self.untold = None
            raise
        self.untold = None
        self.driver.log.already_written.clear()
        self.driver.keep()

    def _rest(self) -> None:
        """What needs all devices at once; batches that are generated stay in the dock meanwhile. Raises
        LeaveSlow, Back."""
        driver = self.driver
        driver.between_steps()
        driver.elastic.apply(driver.step)
        if driver.steps_left:
            driver.stragglers.leave(driver.step)
            driver.left_out.apply()
        driver.stages.take_phases()  # what that took is told by events of its own
        self.run_ahead.held = driver.stages.held
        self.run_ahead.paused = False
        self.rested, self.marked = driver.step, unix_seconds()
        driver.keep()

    def _begin(self, action: Action) -> None:
        what, number = action
        driver, stages = self.driver, self.driver.stages
        self.run_ahead.begun(action)
        if what == "sync":
            stages.sync(number)
        elif what == "send":
            self.delivery.begin(number)
        else:
            if what == "generate":
                self.batches[number] = driver.begin_batch(number, self.attempts[number])
            half = course.generation if what == "generate" else course.update
            calls = self.batches[number]
            self.halves[action] = Half(half(driver.schedule, stages, calls))
            self._go_on()
            if not (what == "generate" and driver.schedule.in_rounds):
                self._account_now(calls, what)

    def _account_now(self, calls: BatchCalls, what: str) -> None:
        """Where devices, asked later, would answer after the next batch."""
        if self.run_ahead.max_staleness:
            self._account(calls, what)

    def _account(self, calls: BatchCalls, what: str = "") -> None:
        actors, members = self.driver.actors, list(self.driver.actors.members)
        if what:
            generates = what == "generate"
            members = actors.rollout_members() if generates else actors.update_members()
        others = [] if what == "update" else [actors.feeder, *actors.rewards]
        self.driver.stages.account(calls, members, others)

    def _wait(self) -> None:
        """Until a call ends, or for a moment. Raises what failed beside the dock."""
        pending = {
            call: number
            for number, calls in self.batches.items()
            for call in calls.all()
            if call not in self.ended
        }
        waited = [
            [call for calls in self._unfinished(half).values() for call in calls]
            for half in self.halves.values()
        ]
        done, _ = ended_of(
            [*pending, *self.delivery.pending],
            seconds=TICK_SECONDS,
            groups=[*waited, self.delivery.pending],
        )
        self.delivery.look()
        for call in done:
            number = pending.get(call)
            if number not in self.batches:  # of a delivery, or of a batch that has just failed
                continue
            self.ended.add(call)
            try:
                results([call])
            except DockError as error:
                self._failed(number, error)

    def _go_on(self) -> None:
        """Begin what waited for calls that have ended."""
        for action, half in [*self.halves.items()]:
            while action in self.halves and not self._unfinished(half):
                if (waits := next(half.course, None)) is None:
                    del self.halves[action]
                    self._ended(action)
                else:
                    half.waits, half.stage = waits, ""

    def _ended(self, action: Action) -> None:
        what, number = action
        if what == "update":
            self._updated(number)
            return
        if self.driver.schedule.in_rounds:  # whose calls were not known before
            self._account_now(self.batches[number], what)
        self.run_ahead.generated(number)

    def _unfinished(self, half: Half) -> Waits:
        """What of its calls have not ended, by stage."""
        waits = {s: [c for c in calls if c not in self.ended] for s, calls in half.waits.items()}
        return {stage: calls for stage, calls in waits.items() if calls}

    def _updated(self, number: int) -> None:
        driver, run_ahead, calls = self.driver, self.run_ahead, self.batches[number]
        run_ahead.updated(number)
        self._forget(number)
        driver.trained(calls)
        self.untold = calls
        if (next_ones := run_ahead.next()) and next_ones[0][0] == "sync":
            self._begin(next_ones[0])
        if not run_ahead.max_staleness:
            self._account(calls)
        self._tell(calls)
        self.marked = unix_seconds()
        if driver.save_due and driver.steps_left and not run_ahead.at_rest:
            driver.save()

    def _failed(self, number: int, error: DockError) -> None:
        """Start the batch over, unless it was trained on before it failed.

        In a partial rollout all batches that are on their way: each was made of what others left over.
        """
        driver = self.driver
        driver.hung(error)
        for lost in self._lose([*self.batches] if driver.schedule.lost_together else [number]):
            driver.starts_over(lost, error, self.failures[lost.step])
            self.failures[lost.step] += 1
            self.attempts[lost.step] += 1

    def _lose(self, numbers: list[int]) -> list[BatchName]:
        """Settle batches that cannot go on. Returns those that were not trained on."""
        if not numbers:
            return []
        batches = {number: self.batches[number] for number in sorted(numbers)}
        trained = [n for n, calls in batches.items() if self.driver.stages.settle(calls)]
        lost = [number for number in batches if number not in trained]
        for number in lost:
            self._forget(number)
            self.run_ahead.failed(number)
        self.driver.schedule.start_over(trained=bool(trained))
        for number in trained:
            self._updated(number)
        return [batches[number].batch for number in lost]

    def _forget(self, number: int) -> None:
        self.ended -= {*self.batches.pop(number).all()}
        self.halves = {of: half for of, half in self.halves.items() if of[1] != number}

    def _look_at_deadlines(self) -> None:
        """Raise WorkerError where a stage takes too long, counted since all before it have ended."""
        stages = self.driver.stages
        for half in self.halves.values():
            stage, missing = next(iter(self._unfinished(half).items()))
            if stage != half.stage:
                half.stage, half.since = stage, monotonic()
            elif monotonic() - half.since > stages.job.spec.flow.stage_timeout_seconds:
                raise stages.late(stage, len(missing), len(half.waits[stage]))
