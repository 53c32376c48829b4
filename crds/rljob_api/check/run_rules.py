"""What a job may say and `rljob plan` may compute, but `rljob run` cannot do yet, by name.

Called by the CLI before anything starts. Empty for a job that runs.
"""

from collections.abc import Iterator

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import can_reshard

WHEN = "rljob run cannot do that yet (rljob plan can)"
SHARES = {"torch": ("tensor", "pipeline", "expert"), "vllm": ("tensor",)}
"""Degrees by which devices share a model, by rollout engine; those of packages have one device a model."""


def refusals(job: RLJob) -> list[Problem]:
    """Each setting that the runtime lacks, with the one that it has. job: passed the rules."""
    problems = [
        Problem(path, f"is {value}; {WHEN}; use {legal}")
        for path, value, legal in _only_one(job)
        if value != legal
    ]
    problems += [*_rollout_degrees(job), *_reshard(job)]
    if job.spec.suspend:
        message = "is true, but rljob run starts at once; set it to false or leave it out"
        problems.append(Problem("spec.suspend", message))
    return problems


def _only_one(job: RLJob) -> Iterator[tuple[str, object, object]]:
    """(path, value, the only value that runs)."""
    spec = job.spec
    update = spec.update
    yield "spec.accelerator.type", spec.accelerator.type, "emulated"
    if update.engine == "mindspeed":
        yield "spec.update.engine", update.engine, "megatron"
    if update.engine in ("megatron", "mindspeed"):
        yield "spec.update.optimizer.momentsDtype", update.optimizer.moments_dtype, "float32"
        yield "spec.update.offload", update.offload, "none"
        yield (
            "spec.update.parallelism.zero",
            update.parallelism.zero,
            min(update.parallelism.zero, 1),
        )


def _rollout_degrees(job: RLJob) -> Iterator[Problem]:
    """What an engine cannot share a model by."""
    rollout = job.spec.rollout
    shares = SHARES.get(rollout.engine, ())
    for name in ("tensor", "pipeline", "expert"):
        degree = getattr(rollout.parallelism, name)
        if degree > 1 and name not in shares:
            yield Problem(
                f"spec.rollout.parallelism.{name}",
                f"is {degree} with engine {rollout.engine}; {WHEN}; use 1, or "
                "spec.rollout.engine: torch",
            )


def _reshard(job: RLJob) -> Iterator[Problem]:
    """What does not hold the weights of both layouts as tensors that a plan moves."""
    spec, strategy = job.spec, job.spec.resharding.strategy
    placed = "colocated" if strategy == "allgather-swap" else spec.placement.mode
    if strategy in (None, "stream") or (can_reshard(spec) and spec.placement.mode == placed):
        return
    own_form = "which keeps its weights in a form of its own"
    named = (
        (
            "placement.mode",
            spec.placement.mode,
            placed,
            "whose devices hold one layout",
        ),
        ("update.engine", spec.update.engine, "torch", own_form),
        ("rollout.engine", spec.rollout.engine, "torch", own_form),
        ("rollout.quantization", spec.rollout.quantization, "none", "which rounds what it takes"),
    )
    others = [
        (f"spec.{path}: {value} ({why})", f"spec.{path}: {legal}")
        for path, value, legal, why in named
        if value != legal
    ]
    met = [text for text, _ in others]
    met += ["spec.data.preferences (no weights go to a rollout)"] if spec.has_pairs else []
    first = "allgather" if can_reshard(spec) else "stream"
    remedies = [first, *([] if spec.has_pairs else [" and ".join(legal for _, legal in others)])]
    text = f"is {strategy} with {' and '.join(met)}; {WHEN}; use {', or '.join(remedies)}"
    yield Problem("spec.resharding.strategy", text)
