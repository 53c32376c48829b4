"""A child process that plays sessions of the user's agent, one at a time: a line in for a task, a line out
for what it returned. Started by `agent_pool`.

Ends with its parent, even while a session hangs. What agents print goes to stderr, so that it never mixes
with the answers.
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

GIVEN = ("base_url", "api_key")
HOST = "127.0.0.1"


def main() -> None:
    """Read which agent, then sessions until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the driver's business
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    os.environ["NO_PROXY"] = ",".join(filter(None, (os.environ.get("NO_PROXY"), HOST)))
    os.environ["no_proxy"] = os.environ["NO_PROXY"]
    try:
        play = _agent(Path(config["path"]), config["function"])
    except Exception as error:
        answers.write(json.dumps({"refused": _told(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(_played(play, json.loads(line))) + "\n")


def _agent(file: Path, name: str) -> Callable[..., Any]:
    found = getattr(import_user_file(file), name)
    if not callable(found):
        raise TypeError(f"{name} is a {type(found).__name__}; it must be a function of a task")
    return found  # type: ignore[no-any-return]


def _played(play: Callable[..., Any], session: dict[str, Any]) -> dict[str, Any]:
    os.environ["OPENAI_BASE_URL"] = session["base_url"]
    os.environ["OPENAI_API_KEY"] = session["api_key"]
    try:
        wanted = inspect.signature(play).parameters.keys() & {*GIVEN}
        returned = play(session["task"], **{name: session[name] for name in wanted})
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
        return {"reward": _reward(returned)}
    except Exception as error:
        return {"error": _told(error)}


def _reward(returned: object) -> float | None:
    if returned is None:
        return None
    if isinstance(returned, (bool, int, float)) and math.isfinite(returned):
        return float(returned)
    raise TypeError(f"it returned {returned!r}; it must return a finite number or None")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".encode(errors="replace").decode()


if __name__ == "__main__":
    main()
