"""Rules on agents: the settings that a session can be combined with, and the reward that it returns.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule, own_reward
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec

PATH = "spec.rollout.agent"


def agent_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require settings that suit sessions: each is for one sample, on one device, within a step."""
    agent = spec.rollout.agent
    if agent is None:
        return
    stage = spec.flow.stage_timeout_seconds
    if agent.timeout_seconds >= stage:
        yield Problem(
            f"{PATH}.timeoutSeconds",
            f"is {agent.timeout_seconds:g}, but a whole stage of a step has {stage:g} s "
            "(spec.flow.stageTimeoutSeconds); lower it",
        )
    shared = spec.rollout.parallelism
    for name in ("tensor", "pipeline", "expert"):
        if (degree := getattr(shared, name)) > 1:
            yield Problem(
                f"spec.rollout.parallelism.{name}",
                f"is {degree}, and requests of an agent ({PATH}) go to one device, which does not tell the "
                "others; use 1",
            )
    if spec.flow.partial_rollout is not None:
        yield Problem(
            "spec.flow.partialRollout",
            f"has no use with {PATH}: a session that runs cannot wait for the next step; leave one "
            "of both out",
        )
    if spec.update.router_replay:
        yield Problem(
            "spec.update.routerReplay",
            f"does not know the routes of what an agent ({PATH}) puts between answers; leave one of both out",
        )
    if spec.model.vision is not None:
        yield Problem(
            PATH, "is shown no pictures yet; leave it out, or leave spec.model.vision out"
        )
    if spec.has_pairs:
        yield Problem(PATH, "has no use with spec.data.preferences, which generates nothing")
    if spec.data.chat:
        yield Problem(
            "spec.data.chat",
            f"has no use with {PATH}, whose messages are always in the chat template; leave it out",
        )


def agent_reward_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Allow one reward of type agent, and only with an agent."""
    missing = None if spec.rollout.agent else f"{PATH}, whose function returns it"
    yield from own_reward(spec, "agent", giver=missing, else_use="without")


AGENT_RULES: tuple[Rule, ...] = (agent_rule, agent_reward_rule)
