"""Rules on guards and stragglers: a rollback needs a checkpoint, and a device must be replaceable.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.guards import steps_of
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import keeps_engine


def rollback_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require checkpoints during training, and keep enough of them that one is older than the alarm's first
    step."""
    every, keep = spec.checkpoint.every, spec.checkpoint.keep
    for name, guard in spec.guards.by_name().items():
        if guard.policy != "rollback":
            continue
        path = f"spec.guards.{name}.policy"
        if every is None:
            yield Problem(
                path,
                "is rollback, but no checkpoint is saved before the last step; set "
                "spec.checkpoint.every, or use warn or stop",
            )
            continue
        needed = 1 + -(-(steps_of(guard) - 1) // every)
        if keep < needed:
            yield Problem(
                "spec.checkpoint.keep",
                f"is {keep}, but spec.guards.{name} rolls back over {steps_of(guard)} steps and "
                f"checkpoints are {every} steps apart; use {needed} or more, or a smaller window",
            )


def straggler_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse replacement if a process would have to create its engine twice. Engines other than `torch` can
    be created once, and are kept only if one device holds the model."""
    trains_too = spec.placement.mode == "colocated" and "generate" in spec.states
    is_created_once = spec.rollout.engine != "torch" and not keeps_engine(spec)
    if spec.stragglers.action == "replace" and trains_too and is_created_once:
        yield Problem(
            "spec.stragglers.action",
            f"is replace, but colocated devices cannot make the engine {spec.rollout.engine} a second time "
            "when they meet anew; use tell, or placement.mode: separated",
        )


GUARD_RULES: tuple[Rule, ...] = (rollback_rule, straggler_rule)
