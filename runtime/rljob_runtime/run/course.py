"""The course of a training batch: which stages start together, and what they wait for.

`loop` calls `generation` and `update`. Both start stages and yield the calls, by stage, that must end before
they continue. The update may start while the generation still waits.
"""

from collections.abc import Iterator

from rljob_runtime.errors import WorkerError
from rljob_runtime.processes.clock import monotonic
from rljob_runtime.processes.workers import Call
from rljob_runtime.prompts.schedule import PromptSchedule
from rljob_runtime.run.stages import BatchCalls, Stages
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES, evaluation_states

PendingCalls = dict[str, list[Call]]


def generation(
    schedule: PromptSchedule, stages: Stages, calls: BatchCalls
) -> Iterator[PendingCalls]:
    """Start the stages that generate the batch's samples, until all samples are there. Raises as `rounds`
    does."""
    if schedule.in_rounds:
        yield from rounds(schedule, stages, calls)
        return
    order = ["feed", *(s for s in ("generate", "reward") if s in stages.job.spec.states)]
    for stages_to_start in [[s] for s in order if s != "reward"] if _is_sync(stages) else [order]:
        stages.start(calls, stages_to_start)
        yield {stage: calls.of_stage[stage] for stage in stages_to_start if stage != "reward"}


def update(schedule: PromptSchedule, stages: Stages, calls: BatchCalls) -> Iterator[PendingCalls]:
    """Start the stages that score the batch and train on it."""
    states = stages.job.spec.states
    passed = evaluation_states(stages.job.spec) if schedule.in_rounds else ()
    scoring = [stage for stage in states if stage in INFERENCE_STATES and stage not in passed]
    training = [stage for stage in states if stage in TRAINING_STATES]
    if not _is_sync(stages):
        order = [[*scoring, *training]]
    else:
        rewards = ["reward"] if "reward" in states and "reward" not in passed else []
        order = [[*scoring, *rewards], training]
    for stages_to_start in order:
        stages.start(calls, stages_to_start)
        yield calls.of_stage


def rounds(schedule: PromptSchedule, stages: Stages, calls: BatchCalls) -> Iterator[PendingCalls]:
    """Fill the batch by rounds of generation, and add the calls of each round to `calls`. Raises WorkerError
    if groups are missing after the last round, or if the batch is not full by flow.stageTimeoutSeconds."""
    step, seconds = calls.batch.step, stages.job.spec.flow.stage_timeout_seconds
    deadline = monotonic() + seconds
    order = ["feed", *evaluation_states(stages.job.spec)]
    while (current_round := schedule.next_round(step)) is not None:
        pools = (
            (current_round.pool.pool, current_round.pool.next_pool) if current_round.pool else ()
        )
        calls.related_batches += [
            current_round.rows,
            *([current_round.next_batch] if current_round.next_batch else []),
            *pools,
        ]
        round_calls = BatchCalls(batch=current_round.rows, round=current_round)
        for stages_to_start in [[s] for s in order] if _is_sync(stages) else [order]:
            stages.start(round_calls, stages_to_start)
            for stage in stages_to_start:
                calls.of_stage.setdefault(stage, []).extend(round_calls.of_stage[stage])
                calls.devices.setdefault(stage, []).extend(round_calls.devices[stage])
            yield round_calls.of_stage
        for report in round_calls.reports("reward"):
            schedule.record_selection(report.selected)
        if monotonic() > deadline and (missing := schedule.shortage(f"{seconds:g} s")):
            raise WorkerError(f"step {step}: {missing}")
    if missing := schedule.shortage(""):
        raise WorkerError(f"step {step}: {missing}")


def _is_sync(stages: Stages) -> bool:
    return stages.job.spec.flow.mode == "sync"
