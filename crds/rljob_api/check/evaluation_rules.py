"""Rules on evaluation, and on settings that depend on one.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule, exactly_one
from rljob_api.spec.evaluation import Evaluation, EvaluationSuite
from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec


def best_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require evaluations during training for the best checkpoint and for early stopping."""
    evaluation = spec.evaluation
    if evaluation is None:
        if spec.checkpoint.keep_best:
            yield Problem(
                "spec.checkpoint.keepBest",
                "is true, but nothing is evaluated; set spec.evaluation, or leave it out",
            )
        return
    if evaluation.every is None and evaluation.early_stop is not None:
        yield Problem(
            "spec.evaluation.earlyStop",
            "needs evaluations during training; set spec.evaluation.every",
        )
    legal = metrics_of(evaluation)
    if evaluation.metric not in legal:
        hint = suggestion(evaluation.metric, legal) or ";"
        yield Problem(
            "spec.evaluation.metric",
            f"is {evaluation.metric!r}{hint} this evaluation has {', '.join(legal)}",
        )


def evaluation_notes(spec: RLJobSpec) -> Iterator[str]:
    """Yield a note on evaluations that never run."""
    every = spec.evaluation.every if spec.evaluation else None
    if every is not None and every > spec.steps:
        yield (
            f"spec.evaluation.every {every} is more than spec.steps {spec.steps}: nothing is evaluated "
            "during training, only before and after"
        )


def metrics_of(evaluation: Evaluation) -> list[str]:
    """Return the names that evaluation.metric may have."""
    of_suites = [
        f"{suite.name}/{name}" for suite in evaluation.suites for name in ("accuracy", "reward")
    ]
    return ["accuracy", "reward", *of_suites]


def suite_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require suites with unique names and one source each, which the rewards can score."""
    names: set[str] = set()
    for index, suite in enumerate(spec.evaluation.suites if spec.evaluation else []):
        path = f"spec.evaluation.suites[{index}]"
        if suite.name in names:
            yield Problem(f"{path}.name", f"{suite.name!r} is taken by an earlier suite; rename it")
        names.add(suite.name)
        sources = {
            "reasoningGym": suite.reasoning_gym,
            "drawn": suite.drawn,
            "jsonl": suite.jsonl,
            "parquet": suite.parquet,
            "source": suite.source,
            "environment": suite.environment,
        }
        yield from exactly_one(path, sources)
        yield from _level_problems(suite, path)
        by_dataset = any(reward.type == "dataset" for reward in spec.rewards)
        if suite.reasoning_gym is None and by_dataset:
            yield Problem(
                path,
                "has no scorer for rewards of type dataset, which are reasoning-gym's; use exact, "
                "math-verify, regex, format or python in spec.rewards, or a suite of reasoningGym",
            )


def _level_problems(suite: EvaluationSuite, path: str) -> Iterator[Problem]:
    generator = suite.reasoning_gym or suite.drawn
    generator_path = f"{path}.reasoningGym" if suite.reasoning_gym else f"{path}.drawn"
    if generator is None:
        if suite.levels:
            yield Problem(
                f"{path}.levels",
                "are those of a reasoning-gym curriculum, or of drawn pictures; leave them out, or use "
                "reasoningGym or drawn",
            )
    elif generator.curriculum is not None:
        yield Problem(
            f"{generator_path}.curriculum",
            "is for training; use levels for a set of each, or leave it out",
        )
    elif suite.levels and generator.has_level:
        yield Problem(f"{generator_path}.level", "is given by levels already; leave one out")


EVALUATION_RULES: tuple[Rule, ...] = (best_rule, suite_rule)
