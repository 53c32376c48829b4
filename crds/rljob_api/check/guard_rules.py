"""Rules on guards: a rollback has somewhere to go.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.guards import steps_of
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec


def rollback_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Checkpoints on the way, and enough of them kept that one is older than the alarm's first step."""
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


GUARD_RULES: tuple[Rule, ...] = (rollback_rule,)
