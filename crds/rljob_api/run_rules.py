"""What a job may say and `rljob plan` may compute, but `rljob run` cannot do yet, by name.

Called by the CLI before anything starts. Empty for a job that runs.
"""

from collections.abc import Iterator

from rljob_api.extensions import is_extension
from rljob_api.problems import Problem
from rljob_api.rljob import RLJob

WHEN = "rljob run cannot do that yet (rljob plan can)"


def refusals(job: RLJob) -> list[Problem]:
    """Each setting that the runtime lacks, with the one that it has. job: passed the rules."""
    problems = [
        Problem(path, f"is {value}; {WHEN}; {legal}")
        for path, value, runs, legal in _settings(job)
        if not runs
    ]
    if job.spec.suspend:
        message = "is true, but rljob run starts at once; set it to false or leave it out"
        problems.append(Problem("spec.suspend", message))
    return problems


def _settings(job: RLJob) -> Iterator[tuple[str, object, bool, str]]:
    """(path, value, whether it runs, what does)."""
    for path, value, legal in _only_one(job):
        yield path, value, value == legal, f"use {legal}"
    update = job.spec.update.parallelism
    path = "spec.update.parallelism"
    yield f"{path}.zero", update.zero, update.zero < 3, "use 0, 1 or 2"


def _only_one(job: RLJob) -> Iterator[tuple[str, object, object]]:
    """(path, value, the only value that runs)."""
    spec = job.spec
    yield "spec.accelerator.type", spec.accelerator.type, "emulated"
    if not is_extension(spec.update.engine):
        yield "spec.update.engine", spec.update.engine, "torch"
    yield "spec.update.dtype", spec.update.dtype, "float32"
    yield "spec.resharding.strategy", spec.resharding.strategy, "allgather"
    rollout = spec.rollout.parallelism
    path = "spec.rollout.parallelism"
    yield f"{path}.tensor", rollout.tensor, 1
    yield f"{path}.pipeline", rollout.pipeline, 1
    yield f"{path}.expert", rollout.expert, 1
