"""Rules on tools: who can generate with them, and what a call may take.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.extensions import is_extension
from rljob_api.problems import Problem
from rljob_api.rljob import RLJobSpec
from rljob_api.rules import Rule
from rljob_api.tools import RESULT, Tool

PATH = "spec.rollout.tools"


def tools_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Tags of their own, and the members that each type has."""
    rollout, seen = spec.rollout, set[str]()
    if rollout.max_turns is not None and not rollout.tools:
        yield Problem(
            "spec.rollout.maxTurns",
            f"is {rollout.max_turns}, but without spec.rollout.tools a sample has one turn; name tools, or "
            "leave it out",
        )
    for index, tool in enumerate(rollout.tools):
        path = f"{PATH}[{index}]"
        if tool.name == RESULT:
            yield Problem(f"{path}.name", f"{RESULT!r} is the tag of answers; rename the tool")
        if tool.name in seen:
            yield Problem(f"{path}.name", f"{tool.name!r} is taken by an earlier tool; rename it")
        seen.add(tool.name)
        yield from _members(tool, path)


def tool_lengths_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """A call and its answer fit a response and a stage."""
    longest, stage = spec.batch.max_response_length, spec.flow.stage_timeout_seconds
    for index, tool in enumerate(spec.rollout.tools):
        if tool.max_answer_tokens >= longest:
            yield Problem(
                f"{PATH}[{index}].maxAnswerTokens",
                f"is {tool.max_answer_tokens}, which leaves no room for the call in a response of "
                f"{longest} tokens (spec.batch.maxResponseLength, which counts answers of tools, too); "
                "lower it, or raise maxResponseLength",
            )
        if tool.timeout_seconds >= stage:
            yield Problem(
                f"{PATH}[{index}].timeoutSeconds",
                f"is {tool.timeout_seconds:g}, but a whole stage of a step has {stage:g} s "
                "(spec.flow.stageTimeoutSeconds); lower it",
            )


def tool_stop_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """No stop string ends every response at its call."""
    for tool in spec.rollout.tools:
        for index, text in enumerate(spec.data.stop):
            if text in tool.opening or text in tool.closing:
                yield Problem(
                    f"spec.data.stop[{index}]",
                    f"is {text!r}, which is in the tags of tool {tool.name!r}, so that no call would ever be "
                    "made; use another string, or rename the tool",
                )


def tool_engines_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Engines that stop one row for an answer and read it behind what they drew."""
    rollout = spec.rollout
    if not rollout.tools:
        return
    if rollout.engine != "torch":
        why = (
            "vLLM's public interface takes no tokens into a response that it is generating"
            if rollout.engine == "vllm"
            else "the protocol of a package's engine has no answers of tools"
        )
        yield Problem(PATH, f"need spec.rollout.engine torch, not {rollout.engine}: {why}")
    if rollout.parallelism.shared:
        yield Problem(
            PATH,
            "need a whole model on each device that generates: answers come when they come, and devices that "
            "share a model must all take the same step; use tensor, pipeline and expert 1 in "
            "spec.rollout.parallelism",
        )
    if is_extension(spec.update.engine):
        yield Problem(
            PATH,
            f"need spec.update.engine torch or mindspeed, not {spec.update.engine}: an engine of a package "
            "would train on the tokens of tools",
        )


def tool_flow_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Somebody generates, and every sample to its end."""
    if not spec.rollout.tools:
        return
    if spec.has_pairs:
        yield Problem(PATH, "have no use with spec.data.preferences, which generates nothing")
    if spec.flow.partial_rollout is not None:
        yield Problem(
            PATH,
            "and spec.flow.partialRollout exclude each other: a sample that goes on in the next step has no "
            "column for its tools' tokens; leave one of both out (flow.mode: async hides slow samples, too)",
        )


def _members(tool: Tool, path: str) -> Iterator[Problem]:
    if tool.memory is not None and tool.type != "python":
        yield Problem(
            f"{path}.memory", f"is only for type python, not for {tool.type}; leave it out"
        )
    if tool.params is not None and not is_extension(tool.type):
        yield Problem(
            f"{path}.params", f"is only for tools of packages, not for {tool.type}; leave it out"
        )


TOOL_RULES: tuple[Rule, ...] = (
    tools_rule,
    tool_lengths_rule,
    tool_stop_rule,
    tool_engines_rule,
    tool_flow_rule,
)
