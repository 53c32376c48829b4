"""Rules on tools: their tags, and the limits of a call. Engines that support tools are in `turn_rules`.

Pure functions from a spec to problems, called by `load`.
"""

from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.extensions import is_extension
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.tools import RESULT, Tool

PATH = "spec.rollout.tools"


def tools_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require unique tags, and the members that each type has."""
    names = set[str]()
    for index, tool in enumerate(spec.rollout.tools):
        path = f"{PATH}[{index}]"
        if tool.name == RESULT:
            yield Problem(f"{path}.name", f"{RESULT!r} is the tag of answers; rename the tool")
        if tool.name in names:
            yield Problem(f"{path}.name", f"{tool.name!r} is taken by an earlier tool; rename it")
        names.add(tool.name)
        yield from _members(tool, path)


def tool_lengths_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that a call and its answer fit a response and a stage."""
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
    """Refuse stop strings that end every response at its call."""
    for tool in spec.rollout.tools:
        for index, text in enumerate(spec.data.stop):
            if text in tool.opening or text in tool.closing:
                yield Problem(
                    f"spec.data.stop[{index}]",
                    f"is {text!r}, which is in the tags of tool {tool.name!r}, so that no call would ever be "
                    "made; use another string, or rename the tool",
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
)
