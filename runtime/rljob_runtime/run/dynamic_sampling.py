"""Rounds of dynamic sampling, until a step's batch is full. Called by the driver before its update."""

import time

from rljob_runtime.errors import WorkerError
from rljob_runtime.prompts.candidates import Candidates
from rljob_runtime.run.stages import BatchCalls, Stages

ROUND = ("feed", "generate", "reward")


def draw_candidates(candidates: Candidates, stages: Stages, calls: BatchCalls) -> None:
    """Fill the batch; calls takes the rounds' calls in. Raises Interrupted, DockError, and WorkerError where
    groups are missing after the last round, or the batch is not full by flow.stageTimeoutSeconds."""
    spec = stages.job.spec
    deadline = time.monotonic() + spec.flow.stage_timeout_seconds
    for stage in ROUND:
        calls.of_stage[stage] = []
    while (now := candidates.next(calls.batch.step)) is not None:
        calls.beside += [now.rows, *([now.next_batch] if now.next_batch else [])]
        own = BatchCalls(batch=now.rows, now=now)
        for together in [[s] for s in ROUND] if spec.flow.mode == "sync" else [list(ROUND)]:
            stages.start(own, together)
            for stage in together:
                calls.of_stage[stage] += own.of_stage[stage]
            stages.finish(own, together)
        for report in own.reports("reward"):
            candidates.selected(report.taken, report.kept, report.left_over)
        if time.monotonic() > deadline and candidates.filled < candidates.prompts:
            raise _short(candidates, f"{spec.flow.stage_timeout_seconds:g} s", calls)
    if candidates.filled < candidates.prompts:
        raise _short(candidates, f"{candidates.rounds} rounds", calls)


def _short(candidates: Candidates, after: str, calls: BatchCalls) -> WorkerError:
    return WorkerError(
        f"step {calls.batch.step}: {candidates.filled} of {candidates.prompts} groups have a signal after "
        f"{after} of dynamic sampling ({candidates.drawn} drawn, {candidates.keep_rate:.0%} kept); the task "
        "is too easy or too hard for the model: change the data, raise batch.samplesPerPrompt or "
        "algorithm.params.dynamicSampling.maxRounds, or set whenShort: fill"
    )
