"""Rules on low-rank adapters. Called by `load` on a spec, and by `shape_rules` once the model is known."""

from collections import Counter
from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.model.adapters import adapted_in_every_layer, legal_targets, smallest_target
from rljob_api.model.architecture import Shape
from rljob_api.spec.lora import ALL_LINEAR
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec

PATH = "spec.update.lora"


def lora_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow adapters only for the engine `torch`, and each module once."""
    lora = spec.update.lora
    if lora is None:
        return
    if spec.update.engine != "torch":
        yield Problem(
            PATH,
            f"has no use with engine {spec.update.engine}, which trains all weights; use update.engine: "
            "torch, or leave it out",
        )
    path, named = f"{PATH}.targetModules", lora.target_modules
    if ALL_LINEAR in named and len(named) > 1:
        yield Problem(path, f"has {ALL_LINEAR} beside other names; leave it or the others out")
    for name, times in Counter(named).items():
        if times > 1:
            yield Problem(path, f"has {name!r} {times} times; keep one")


def lora_shape_problems(spec: RLJobSpec, shape: Shape) -> Iterator[Problem]:
    """Yield modules that the model does not have, a rank above that of a matrix, and stages without
    adapters."""
    lora = spec.update.lora
    if lora is None:
        return
    path, legal = f"{PATH}.targetModules", legal_targets(shape)
    unknown = [name for name in lora.target_modules if name not in (*legal, ALL_LINEAR)]
    if unknown:
        yield Problem(
            path,
            f"has {', '.join(unknown)}, which {shape.family} has not as a matrix that can have an adapter; "
            f"use some of {', '.join(legal)}, or {ALL_LINEAR}",
        )
        return
    smallest = smallest_target(lora, shape)
    if smallest is not None and lora.rank > (most := min(smallest.shape)):
        yield Problem(
            f"{PATH}.rank",
            f"is {lora.rank}, more than {most}, the rank of {smallest.name} itself; use {most} or less",
        )
    if spec.update.parallelism.pipeline > 1 and not adapted_in_every_layer(lora, shape):
        yield Problem(
            path,
            "leaves layers without an adapter, and with pipeline "
            f"{spec.update.parallelism.pipeline} every stage trains; add o_proj, or use pipeline: 1",
        )


LORA_RULES: tuple[Rule, ...] = (lora_rule,)
