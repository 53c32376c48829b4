"""Settings that `rljob plan` can compute, but that `rljob run` does not support yet.

Called by the CLI before anything starts. Empty for a job that runs.
"""

from collections.abc import Iterator

from rljob_api.check.megatron_rules import megatron_degrees, megatron_settings
from rljob_api.model.architecture import Shape
from rljob_api.spec.extensions import is_extension
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import can_reshard
from rljob_api.topology.worker_pods import is_ascend

WHEN = "rljob run cannot do that yet (rljob plan can)"
SHARES = {"torch": ("tensor", "pipeline", "expert"), "vllm": ("tensor",)}
"""Degrees by which devices share a model, by rollout engine. Engines of packages use one device per model."""


def refusals(job: RLJob, shape: Shape | None = None) -> list[Problem]:
    """Return each setting that the runtime does not support, with one that it does. job: passed the rules.
    shape: the model's, whose degrees are checked too."""
    problems = [
        Problem(path, f"is {value}; {WHEN}; use {legal}")
        for path, value, legal in _only_one(job)
        if value != legal
    ]
    problems += [*_adapted(job), *_rollout_degrees(job), *_reshard(job), *_replay(job, shape)]
    if shape is not None:
        update = job.spec.update
        problems += megatron_degrees(update.engine, update.parallelism, shape)
    if job.spec.suspend:
        message = "is true, but rljob run starts at once; set it to false or leave it out"
        problems.append(Problem("spec.suspend", message))
    return problems


def _only_one(job: RLJob) -> Iterator[tuple[str, object, object]]:
    """Yield (path, value, the only value that runs)."""
    spec = job.spec
    update = spec.update
    if is_ascend(spec.accelerator):  # weights move between separated devices only over gloo
        yield "spec.placement.mode", spec.placement.mode, "colocated"
    yield from megatron_settings(update)


def _adapted(job: RLJob) -> Iterator[Problem]:
    """Require MindSpeed's adaptor for Megatron on NPUs, and refuse it elsewhere."""
    engine, accelerator = job.spec.update.engine, job.spec.accelerator
    adapted = "mindspeed" if is_ascend(accelerator) else "megatron"
    if engine in ("megatron", "mindspeed") and engine != adapted:
        yield Problem(
            "spec.update.engine",
            f"is {engine} with spec.accelerator.type: {accelerator.type}; use {adapted}",
        )


def _replay(job: RLJob, shape: Shape | None) -> Iterator[Problem]:
    """Require engines that report routes and replay them."""
    spec, path = job.spec, "spec.update.routerReplay"
    if not spec.update.router_replay:
        return
    for name, engine in (("rollout", spec.rollout.engine), ("update", spec.update.engine)):
        if engine != "torch":
            yield Problem(
                path,
                f"is true with spec.{name}.engine: {engine}; {WHEN}; use spec.{name}.engine: torch, or false",
            )
    if spec.has_pairs:
        yield Problem(
            path,
            "is true with spec.data.preferences, where nothing is generated whose routes could be "
            "replayed; leave it out",
        )
    if shape is None:
        yield Problem(
            path,
            f"is true, but the shape of {spec.model.path} is unknown; use a model of docs/models.md with "
            "experts, or false",
        )


def _rollout_degrees(job: RLJob) -> Iterator[Problem]:
    """Refuse degrees by which the engine cannot share a model."""
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
    """Refuse a strategy if an engine does not hold its weights as tensors that a plan can move."""
    spec, strategy = job.spec, job.spec.resharding.strategy
    placed = "colocated" if strategy == "allgather-swap" else spec.placement.mode
    if strategy in (None, "stream") or (can_reshard(spec) and spec.placement.mode == placed):
        return
    own_form = "which keeps its weights in a form of its own"
    built_in = "torch" if is_extension(spec.update.engine) else spec.update.engine
    named = (
        (
            "placement.mode",
            spec.placement.mode,
            placed,
            "whose devices hold one layout",
        ),
        ("update.engine", spec.update.engine, built_in, own_form),
        (
            "rollout.engine",
            spec.rollout.engine,
            "torch" if is_extension(spec.rollout.engine) else spec.rollout.engine,
            own_form,
        ),
        ("rollout.quantization", spec.rollout.quantization, "none", "which rounds what it takes"),
    )
    others = [
        (f"spec.{path}: {value} ({why})", f"spec.{path}: {legal}")
        for path, value, legal, why in named
        if value != legal
    ]
    conflicts = [text for text, _ in others]
    conflicts += ["spec.data.preferences (no weights go to a rollout)"] if spec.has_pairs else []
    first = "allgather" if can_reshard(spec) else "stream"
    remedies = [first, *([] if spec.has_pairs else [" and ".join(legal for _, legal in others)])]
    text = f"is {strategy} with {' and '.join(conflicts)}; {WHEN}; use {', or '.join(remedies)}"
    yield Problem("spec.resharding.strategy", text)
