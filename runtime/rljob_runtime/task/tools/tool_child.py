"""A child process with one tool: one line in for a call, one line out. Started by `tool_pool`.

Ends with its parent, even while a call hangs. What tools print goes to stderr, so that it never mixes with
the answers.
"""

import json
import os
import signal
import sys
from typing import Any

from rljob_api.spec.tools import Tool
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.tools.answers import Failed, TookTooLong
from rljob_runtime.task.tools.tool_table import Answering, make_tool


def main() -> None:
    """Read the tool, then calls until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the driver's business
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tool = Tool.model_validate_json(json.loads(sys.stdin.readline())["tool"])
    try:
        answering = make_tool(tool)
    except ConfigError as error:
        answers.write(json.dumps({"refused": str(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        said = _answer(answering, json.loads(line)["text"])
        answers.write(json.dumps(said) + "\n")


def _answer(answering: Answering, text: str) -> dict[str, Any]:
    try:
        return {"text": answering(text), "outcome": "ok"}
    except Failed as error:
        return {"text": str(error), "outcome": "error"}
    except TookTooLong as error:
        return {"text": str(error), "outcome": "timeout"}
    except Exception as error:
        return {"text": f"error: {error or type(error).__name__}", "outcome": "error"}


if __name__ == "__main__":
    main()
