"""Rules on samples of several turns, with tools, a game or an agent: supported engines and combinations.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.extensions import is_extension
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec

TOOLS, GAME, AGENT = "spec.rollout.tools", "spec.data.environment", "spec.rollout.agent"


def turns_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow at most one kind of turns, and a number of turns only if there are any."""
    most = spec.rollout.max_turns
    if most is not None and not spec.has_turns:
        yield Problem(
            "spec.rollout.maxTurns",
            f"is {most}, but without {TOOLS}, {GAME} and {AGENT} a sample has one turn; "
            "name one of them, or leave it out",
        )
    if spec.rollout.agent is not None and (spec.rollout.tools or spec.data.environment is not None):
        other = TOOLS if spec.rollout.tools else GAME
        yield Problem(
            AGENT,
            f"and {other} exclude each other: an agent has tools and an environment of its own; leave one of "
            "both out",
        )
    if spec.rollout.tools and spec.data.environment is not None:
        yield Problem(
            GAME,
            f"and {TOOLS} exclude each other: a turn ends with a call or with a move; leave one of both out",
        )


def turn_engines_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require engines that can pause one row for an answer and read it after the tokens they drew."""
    rollout = spec.rollout
    if not spec.has_turns:
        return
    path, whose = (TOOLS, "tools") if rollout.tools else (GAME, "the game")
    if rollout.agent is not None:
        path, whose = AGENT, "the agent"
    need = "need" if rollout.tools else "needs"
    if is_extension(rollout.engine):
        yield Problem(
            path,
            f"{need} spec.rollout.engine torch or vllm, not {rollout.engine}: the protocol of a package's "
            f"engine has no answers of {whose}",
        )
    if is_extension(spec.update.engine):
        yield Problem(
            path,
            f"{need} spec.update.engine torch, megatron or mindspeed, not {spec.update.engine}: an engine of "
            f"a package would train on the tokens of {whose}",
        )


def turn_flow_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Refuse tools if nothing is generated."""
    if spec.has_pairs and spec.rollout.tools:
        yield Problem(TOOLS, "have no use with spec.data.preferences, which generates nothing")


TURN_RULES: tuple[Rule, ...] = (turns_rule, turn_engines_rule, turn_flow_rule)
