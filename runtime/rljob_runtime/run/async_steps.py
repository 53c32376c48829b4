"""Steps whose generation runs ahead of the update: what `run_ahead` decides, carried out on the actors.

Called by `loop` where the job's flow is `async`. Whenever something ends, the decision is asked for
again; nothing here chooses what to do next.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from rljob_runtime.errors import DockError
from rljob_runtime.processes.calls import ended_of, results
from rljob_runtime.processes.workers import Call
from rljob_runtime.run.alarm_actions import RollBack
from rljob_runtime.run.delivery import Delivery
from rljob_runtime.run.driver import Driver
from rljob_runtime.run.run_ahead import Action, RunAhead
from rljob_runtime.run.stages import BatchCalls, Interrupted

TICK_SECONDS = 0.1
GENERATION = ("feed", "generate")


@dataclass(slots=True, kw_only=True)
class AsyncSteps:
    """The batches of a run that are on their way. pending: calls that have not ended, and whose they
    are. since: when each stage of a batch began to be waited for."""

    driver: Driver
    run_ahead: RunAhead
    batches: dict[int, BatchCalls] = field(default_factory=dict)
    pending: dict[Call, tuple[int, str]] = field(default_factory=dict)
    since: dict[tuple[int, str], float] = field(default_factory=dict)
    delivery: Delivery = field(init=False)
    attempts: Counter[int] = field(default_factory=Counter)
    marked: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.delivery = Delivery(stages=self.driver.stages, run_ahead=self.run_ahead)

    def run(self) -> None:
        """All steps that are left. Raises Interrupted, with a batch that was trained on counted as done, and
        RollBack, with nothing on its way."""
        try:
            while (
                self.run_ahead.done < self.run_ahead.steps
                and not self.driver.early_stopping.ends_early
            ):
                self._advance()
        except Interrupted:
            training = self.run_ahead.updating
            if training is not None and self.driver.stages.settle(self.batches[training]):
                self._updated(training)
            raise
        except RollBack:
            for calls in self.batches.values():  # of weights that are undone
                self.driver.stages.settle(calls)
            raise
        self.delivery.finish()
        if not self.run_ahead.at_rest:
            self._begin(("sync", self.run_ahead.done))
        self.driver.between_steps()

    def _advance(self) -> None:
        """Begin what may begin, then wait until something has ended."""
        driver, run_ahead = self.driver, self.run_ahead
        driver.look()
        run_ahead.paused |= driver.elastic.waits or driver.evaluation_due
        while actions := run_ahead.next():
            for action in actions:
                self._begin(action)
        if run_ahead.paused and run_ahead.at_rest:
            self._rest()
        else:
            self._wait()

    def _rest(self) -> None:
        """What needs all devices at once; batches that are generated stay in the dock meanwhile."""
        driver = self.driver
        if driver.evaluation_due:
            driver.evaluate()
        driver.elastic.apply(driver.step)
        driver.stages.take_phases()  # what that took is told by events of its own
        self.run_ahead.held = driver.stages.held
        self.run_ahead.paused = False
        self.marked = time.time()

    def _begin(self, action: Action) -> None:
        what, number = action
        stages = self.driver.stages
        if what == "sync":
            stages.sync(number)
        elif what == "send":
            self.delivery.begin(number)
        elif what == "generate":
            calls = self.driver.begin_batch(number, self.attempts[number])
            self.batches[number] = calls
            self._start(number, (*GENERATION, "reward"))
            actors = self.driver.actors
            stages.account(calls, actors.rollout_members(), [actors.feeder, *actors.rewards])
        else:
            scored = [s for s in self.driver.scoring_stages if s != "reward"]
            self._start(number, (*scored, *self.driver.training_stages))
            stages.account(self.batches[number], self.driver.actors.update_members(), [])
        self.run_ahead.begun(action)

    def _start(self, number: int, names: tuple[str, ...]) -> None:
        calls = self.batches[number]
        self.driver.stages.start(calls, names)
        for name in names:
            self.since[number, name] = time.monotonic()
            self.pending |= dict.fromkeys(calls.of_stage[name], (number, name))

    def _wait(self) -> None:
        """Until a call ends, or for a moment. Raises Interrupted, and WorkerError at a deadline."""
        on_their_way = [*self.pending, *self.delivery.pending]
        done, _ = ended_of(on_their_way, seconds=TICK_SECONDS)
        self.delivery.look()
        for call in done:
            if call not in self.pending:  # of a delivery, or of a batch that has just failed
                continue
            number, _ = self.pending.pop(call)
            try:
                results([call])
            except DockError as error:
                self._failed(number, error)
            else:
                self._look_at(number)
        if self.driver.stop():
            raise Interrupted("steps")
        self._look_at_deadlines()

    def _look_at(self, number: int) -> None:
        """See whether a batch has come further."""
        left = {stage for whose, stage in self.pending.values() if whose == number}
        if self.run_ahead.generating == number and not left & {*GENERATION}:
            self.run_ahead.generated(number)
            self.since[number, "reward"] = time.monotonic()
        elif self.run_ahead.updating == number and not left:
            self._updated(number)

    def _updated(self, number: int) -> None:
        driver, calls = self.driver, self.batches[number]
        self.run_ahead.updated(number)
        self._forget(number)
        driver.trained(calls)
        driver.tell_step(calls, time.time() - self.marked)
        self.marked = time.time()
        if driver.save_due and number < self.run_ahead.steps:
            driver.save()

    def _failed(self, number: int, error: DockError) -> None:
        """Start the batch over, unless it was trained on before it failed.

        In a partial rollout all batches that are on their way: each was made of what others left over.
        """
        driver = self.driver
        driver.hung(error)
        for lost in sorted(self.batches) if driver.schedule.lost_together else [number]:
            calls = self.batches[lost]
            if driver.stages.settle(calls):
                self._updated(lost)
                continue
            driver.starts_over(calls.batch, error, calls.batch.attempt)
            self.attempts[lost] += 1
            self._forget(lost)
            self.run_ahead.failed(lost)
        driver.schedule.start_over()

    def _forget(self, number: int) -> None:
        del self.batches[number]
        self.pending = {call: of for call, of in self.pending.items() if of[0] != number}
        self.since = {of: began for of, began in self.since.items() if of[0] != number}

    def _look_at_deadlines(self) -> None:
        limit = self.driver.job.spec.flow.stage_timeout_seconds
        for number, stage in self.pending.values():
            begun = self.since[number, stage]
            held_up = stage == "reward" and self.run_ahead.generating == number
            if not held_up and time.monotonic() - begun > limit:
                missing = list(self.pending.values()).count((number, stage))
                calls = len(self.batches[number].of_stage[stage])
                raise self.driver.stages.late(stage, missing, calls)
