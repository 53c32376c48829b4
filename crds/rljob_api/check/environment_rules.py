"""Rules on environments: what a game needs, what it cannot be combined with, and the reward that it returns.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule, own_reward
from rljob_api.spec.environment import Environment
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec

PATH = "spec.data.environment"


def environment_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that each environment of the job can be created, and that its moves fit a response and a
    stage."""
    for path, played in environments(spec):
        if played.name == "textarena" and not isinstance((played.params or {}).get("game"), str):
            yield Problem(
                f"{path}.params.game",
                "is missing; name a game of textarena for one player, such as GuessTheNumber-v0",
            )
        longest, stage = spec.batch.max_response_length, spec.flow.stage_timeout_seconds
        if played.max_observation_tokens >= longest:
            yield Problem(
                f"{path}.maxObservationTokens",
                f"is {played.max_observation_tokens}, which leaves no room for a move in a response of "
                f"{longest} tokens (spec.batch.maxResponseLength, which counts observations, too); lower it, "
                "or raise maxResponseLength",
            )
        if played.timeout_seconds >= stage:
            yield Problem(
                f"{path}.timeoutSeconds",
                f"is {played.timeout_seconds:g}, but a whole stage of a step has {stage:g} s "
                "(spec.flow.stageTimeoutSeconds); lower it",
            )


def environment_data_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse expected answers for games, and require that games are evaluated by games."""
    played = spec.data.environment is not None
    if played and spec.data.few_shot is not None:
        yield Problem(
            "spec.data.fewShot",
            f"has no use with {PATH}, whose prompts have no answers; leave it out, and say in "
            "spec.data.template how to play",
        )
    for index, suite in enumerate(spec.evaluation.suites if spec.evaluation else []):
        if (suite.environment is not None) != played:
            path = f"spec.evaluation.suites[{index}]"
            yield Problem(
                path,
                f"has no environment, but the job plays games ({PATH}); give it one"
                if played
                else f"has an environment, but the job plays no games; set {PATH}, or leave it out",
            )


def environment_reward_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow one reward of type environment, and only with games."""
    missing = None if spec.data.environment else f"{PATH}, whose games give it"
    yield from own_reward(spec, "environment", giver=missing, else_use="with other data")


def environments(spec: RLJobSpec) -> Iterator[tuple[str, Environment]]:
    """Yield every environment of the job with its path: that of training, and those of suites."""
    if spec.data.environment is not None:
        yield PATH, spec.data.environment
    for index, suite in enumerate(spec.evaluation.suites if spec.evaluation else []):
        if suite.environment is not None:
            yield f"spec.evaluation.suites[{index}].environment", suite.environment


ENVIRONMENT_RULES: tuple[Rule, ...] = (
    environment_rule,
    environment_data_rule,
    environment_reward_rule,
)
