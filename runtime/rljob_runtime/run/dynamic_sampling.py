"""Rounds that fill a step's batch, where its schedule has any. Called by the driver before the step's
stages."""

import time

from rljob_runtime.errors import WorkerError
from rljob_runtime.prompts.schedule import Schedule
from rljob_runtime.run.stages import BatchCalls, Stages

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
