"""Run one tool in a child process: it reads a line per call and writes a line per answer. Started by
`tool_pool`.

Ends with its parent, even while a call hangs. Output of tools goes to stderr, so that it never mixes with
the answers.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rljob_api.spec.json_text import check_text
from rljob_api.spec.section import parse_quantity
from rljob_api.spec.tools import PYTHON_MEMORY, Tool
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import load, tool_use
from rljob_runtime.task.tools.answers import Failed, TookTooLong

ToolFunction = Callable[[str], str]
"""Maps the text between the tags to the answer; an error that it raises is the answer too."""


def make_tool(tool: Tool) -> ToolFunction:
    """Return the tool's function. Raises ConfigError if it cannot work here."""
    return TOOLS.get(tool.type, _extension)(tool)


def _calculator(tool: Tool) -> ToolFunction:
    from rljob_runtime.task.tools.calculator import calculate

    return calculate


def _python(tool: Tool) -> ToolFunction:
    from rljob_runtime.task.tools.python_tool import check_restricted, run_python

    try:
        check_restricted()
    except Failed as error:
        raise ConfigError(
            f"tool {tool.name} (spec.rollout.tools) is of type python, which this machine cannot restrict: "
            f"{error}; use a tool of a package that asks a service (docs/tools.md)"
        ) from error
    memory = parse_quantity(tool.memory or PYTHON_MEMORY)
    return lambda code: run_python(code, timeout_seconds=tool.timeout_seconds, memory_bytes=memory)


def _extension(tool: Tool) -> ToolFunction:
    """Return the function of an installed package's tool: its factory receives the params and returns
    a function of the text."""
    use = tool_use(tool.type, f"tool {tool.name}")
    call = load(use)(tool.params or {})
    if not callable(call):
        raise ConfigError(
            f"{use.path}: {use.name!r} made a {type(call).__name__}; it must make a function of a text that "
            "returns a text"
        )
    return lambda text: check_text(str(call(text)), f"the answer of tool {tool.name}")


TOOLS: dict[str, Callable[[Tool], ToolFunction]] = {"calculator": _calculator, "python": _python}


def main() -> None:
    """Read the tool, then answer calls until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles the terminal's Ctrl-C
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tool = Tool.model_validate_json(json.loads(sys.stdin.readline())["tool"])
    try:
        function = make_tool(tool)
    except Exception as error:
        reason = str(error)
        if not isinstance(error, ConfigError):
            traceback.print_exc()
            reason = f"tool {tool.name} (spec.rollout.tools) did not start: {type(error).__name__}: {error}"
        answers.write(json.dumps({"refused": reason}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answer = _answer(function, json.loads(line)["text"])
        answers.write(json.dumps(answer) + "\n")


def _answer(function: ToolFunction, text: str) -> dict[str, Any]:
    try:
        return {"text": function(text), "outcome": "ok"}
    except Failed as error:
        return {"text": str(error), "outcome": "error"}
    except TookTooLong as error:
        return {"text": str(error), "outcome": "timeout"}
    except Exception as error:
        text = f"error: {error or type(error).__name__}".encode(errors="replace").decode()
        return {"text": text, "outcome": "error"}


if __name__ == "__main__":
    main()
