"""Play sessions of the user's agent in a child process, one at a time: it reads a line per task and
writes a line per result.

Started by `agent_pool`. Ends with its parent, even while a session hangs. Output of agents goes to
stderr, so that it never mixes with the answers.
"""

import asyncio
import inspect
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.task.user_file import import_user_file

SESSION_PARAMETERS = ("base_url", "api_key")
HOST = "127.0.0.1"


def main() -> None:
    """Read the agent's file and function, then play sessions until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles the terminal's Ctrl-C
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), HOST)))
    os.environ["no_proxy"] = os.environ["NO_PROXY"]
    try:
        play = _agent(Path(config["path"]), config["function"])
    except Exception as error:
        answers.write(json.dumps({"refused": _error_text(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_run_session(play, json.loads(line))) + "\n")


def _agent(file: Path, name: str) -> Callable[..., Any]:
    function = getattr(import_user_file(file), name)
    if not callable(function):
        raise TypeError(f"{name} is a {type(function).__name__}; it must be a function of a task")
    return function  # type: ignore[no-any-return]


def _run_session(play: Callable[..., Any], session: dict[str, Any]) -> dict[str, Any]:
    os.environ["OPENAI_BASE_URL"] = session["base_url"]
    os.environ["OPENAI_API_KEY"] = session["api_key"]
    try:
        accepted = inspect.signature(play).parameters.keys() & {*SESSION_PARAMETERS}
        returned = play(session["task"], **{name: session[name] for name in accepted})
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
        return {"reward": _reward(returned)}
    except Exception as error:
        return {"error": _error_text(error)}


def _reward(returned: object) -> float | None:
    if returned is None:
        return None
    if isinstance(returned, (bool, int, float)) and math.isfinite(returned):
        return float(returned)
    raise TypeError(f"it returned {returned!r}; it must return a finite number or None")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()


if __name__ == "__main__":
    main()
