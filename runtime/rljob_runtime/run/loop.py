"""The loops over a run's steps. Called by `launch`.

    feeder ──▶ dock ──▶ rollout devices ──▶ dock ──▶ rewards, models that score ──▶ dock ──▶ update devices
                               ▲                                                                  │
                               └───────────────────────────── weights ────────────────────────────┘

Samples go from stage to stage through the dock, and this process sees none of them.

`sync` and `streaming`, a step after the other: waits for the stages of its batch, at the same time or each
for the one before; unblocked when all update ranks have trained on it and every rollout device has their
weights. `async`, in `async_steps`: generation waits until the batch that it may run ahead of is trained on,
the update for the oldest batch that is scored; whatever ends unblocks what `run_ahead` says.

A batch that the dock lost starts over, from its prompts. An alarm may roll the run back; what ends it leaves
a checkpoint of the last whole step to `launch`.
"""

import time

from rljob_api.topology.devices import updates_in_flight
from rljob_runtime.errors import DockError, WorkerError
from rljob_runtime.prompts.schedule import Schedule
from rljob_runtime.record.checkpoint import read_state
from rljob_runtime.record.folders import folder_for_all
from rljob_runtime.run.alarm_actions import RollBack
from rljob_runtime.run.async_steps import AsyncSteps
from rljob_runtime.run.driver import MAX_STEP_ATTEMPTS, Driver
from rljob_runtime.run.run_ahead import RunAhead
from rljob_runtime.run.stages import BatchCalls, Interrupted, Stages


def run_steps(driver: Driver) -> None:
    """Train until the last step. Raises Interrupted, RljobError, and GuardStop at an alarm."""
    driver.early_stopping.read(driver.step)
    (facts,) = driver.stages.wait("feed", [driver.actors.feeder.facts()])
    driver.schedule.sized(facts["train_size"])
    driver.stages.sync(driver.step)
    if driver.job.spec.evaluation and driver.step == 0:
        driver.evaluate()
    while driver.steps_left:
        try:
            if driver.job.spec.flow.mode == "async":
                _ahead(driver)
            else:
                _one_by_one(driver)
        except RollBack as back:
            _roll_back(driver, back)


def _one_by_one(driver: Driver) -> None:
    while driver.steps_left:
        if driver.stop():  # stages that end at once look at it nowhere
            raise Interrupted(f"step {driver.step + 1}")
        driver.elastic.apply(driver.step)
        driver.stages.take_phases()  # what that took is told by an event of its own
        _step(driver)
        driver.between_steps()


def _ahead(driver: Driver) -> None:
    spec = driver.job.spec
    run_ahead = RunAhead(
        done=driver.step,
        held=driver.stages.held,
        steps=spec.steps,
        max_staleness=spec.flow.most_ahead,
        in_flight=updates_in_flight(spec),
    )
    AsyncSteps(driver=driver, run_ahead=run_ahead).run()


def _step(driver: Driver) -> None:
    """One step; repeated from its prompts when the dock loses a part of it before the update."""
    started, stages = time.time(), driver.stages
    for attempt in range(MAX_STEP_ATTEMPTS):
        calls = driver.begin_batch(driver.step + 1, attempt)
        try:
            fill_batch(driver.schedule, stages, calls)
            driver.carry_out(calls, driver.order_of_stages())
            break
        except (DockError, Interrupted) as error:
            if isinstance(error, DockError):
                driver.hung(error)
            trained = stages.settle(calls)
            driver.schedule.start_over(trained=trained)
            if trained:
                break  # what it was needed for is done
            if isinstance(error, Interrupted):
                raise
            driver.starts_over(calls.batch, error, attempt)
    driver.trained(calls)
    stages.sync(driver.step)
    actors = driver.actors
    stages.account(calls, actors.members, [actors.feeder, *actors.rewards])
    driver.tell_step(calls, time.time() - started)


def _roll_back(driver: Driver, back: RollBack) -> None:
    """Weights, optimizers and position as the checkpoint has them; prompts go on after those of the steps
    that are undone, so that these are not made again."""
    folder = folder_for_all(back.checkpoint, shared=driver.shared)
    loading = [worker.load(folder) for worker in driver.actors.updating()]
    driver.stages.wait("rollback", loading, interruptible=False)
    driver.step = back.step
    driver.alarm_actions.watch.rewind(back.step)
    driver.early_stopping.read(back.step)
    driver.evaluations = [made for made in driver.evaluations if made.step <= back.step]
    driver.schedule.roll_back(read_state(back.checkpoint).prompts)
    driver.stages.sync(back.step)


ROUND = ("feed", "generate", "reward")


def fill_batch(schedule: Schedule, stages: Stages, calls: BatchCalls) -> None:
    """Carry its rounds out; calls takes theirs in. Raises Interrupted, DockError, and WorkerError where
    groups are missing after the last round, or the batch is not full by flow.stageTimeoutSeconds."""
    spec, step = stages.job.spec, calls.batch.step
    seconds = spec.flow.stage_timeout_seconds
    deadline = time.monotonic() + seconds
    while (now := schedule.next_round(step)) is not None:
        calls.beside += [now.rows, *([now.next_batch] if now.next_batch else [])]
        own = BatchCalls(batch=now.rows, now=now)
        for together in [[s] for s in ROUND] if spec.flow.mode == "sync" else [list(ROUND)]:
            stages.start(own, together)
            for stage in together:
                calls.of_stage.setdefault(stage, []).extend(own.of_stage[stage])
            stages.finish(own, together)
        for report in own.reports("reward"):
            schedule.selected(report.taken, report.kept, report.left_over)
        if time.monotonic() > deadline and (missing := schedule.short(f"{seconds:g} s")):
            raise WorkerError(f"step {step}: {missing}")
    if missing := schedule.short(""):
        raise WorkerError(f"step {step}: {missing}")
