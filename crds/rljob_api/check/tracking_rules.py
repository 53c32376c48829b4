"""Rules on trackers. Called by `load`."""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec


def tracking_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse a section that names no tracker, which would track nothing."""
    if spec.tracking is not None and not spec.tracking.named():
        message = "names no tracker; give tensorboard, wandb or mlflow, or leave it out"
        yield Problem("spec.tracking", message)


TRACKING_RULES: tuple[Rule, ...] = (tracking_rule,)
