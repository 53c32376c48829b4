"""The course of a training batch: which of its stages begin together, and what these wait for.

Called by `loop`. Both halves begin stages and yield the calls, by stage, that must have ended before they go
on; the update's may begin while the generation's waits.
"""

from collections.abc import Iterator

from rljob_runtime.errors import WorkerError
from rljob_runtime.processes.clock import monotonic
from rljob_runtime.processes.workers import Call
from rljob_runtime.prompts.schedule import Schedule
from rljob_runtime.run.stages import BatchCalls, Stages
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES, evaluation_states

Waits = dict[str, list[Call]]


def generation(schedule: Schedule, stages: Stages, calls: BatchCalls) -> Iterator[Waits]:
    """Until the batch's samples are there. Raises as `rounds` does."""
    if schedule.in_rounds:
        yield from rounds(schedule, stages, calls)
        return
    order = ["feed", *(s for s in ("generate", "reward") if s in stages.job.spec.states)]
    for together in [[s] for s in order if s != "reward"] if _one_by_one(stages) else [order]:
        stages.start(calls, together)
        yield {stage: calls.of_stage[stage] for stage in together if stage != "reward"}


def update(schedule: Schedule, stages: Stages, calls: BatchCalls) -> Iterator[Waits]:
    """Until it is trained on."""
    states = stages.job.spec.states
    passed = evaluation_states(stages.job.spec) if schedule.in_rounds else ()
    scoring = [stage for stage in states if stage in INFERENCE_STATES and stage not in passed]
    training = [stage for stage in states if stage in TRAINING_STATES]
    if not _one_by_one(stages):
        order = [[*scoring, *training]]
    else:
        rewards = ["reward"] if "reward" in states and "reward" not in passed else []
        order = [[*scoring, *rewards], training]
    for together in order:
        stages.start(calls, together)
        yield calls.of_stage


def rounds(schedule: Schedule, stages: Stages, calls: BatchCalls) -> Iterator[Waits]:
    """Rounds of generation that fill the batch; calls takes theirs in. Raises WorkerError where groups are
    missing after the last round, or the batch is not full by flow.stageTimeoutSeconds."""
    step, seconds = calls.batch.step, stages.job.spec.flow.stage_timeout_seconds
    deadline = monotonic() + seconds
    order = ["feed", *evaluation_states(stages.job.spec)]
    while (now := schedule.next_round(step)) is not None:
        pools = (now.pool.pool, now.pool.next_pool) if now.pool else ()
        calls.beside += [now.rows, *([now.next_batch] if now.next_batch else []), *pools]
        own = BatchCalls(batch=now.rows, now=now)
        for together in [[s] for s in order] if _one_by_one(stages) else [order]:
            stages.start(own, together)
            for stage in together:
                calls.of_stage.setdefault(stage, []).extend(own.of_stage[stage])
                calls.devices.setdefault(stage, []).extend(own.devices[stage])
            yield own.of_stage
        for report in own.reports("reward"):
            schedule.selected(report.selected)
        if monotonic() > deadline and (missing := schedule.short(f"{seconds:g} s")):
            raise WorkerError(f"step {step}: {missing}")
    if missing := schedule.short(""):
        raise WorkerError(f"step {step}: {missing}")


def _one_by_one(stages: Stages) -> bool:
    return stages.job.spec.flow.mode == "sync"
