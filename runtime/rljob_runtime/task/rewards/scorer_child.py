"""A child process that scores: one line in for a response, one line out for each of its rewards.

Started by `scorer_pool`. Ends with its parent, even while a score hangs. What rewards print goes to stderr,
so that it never mixes with the answers.
"""

import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorers import Scorer, make_scorer


def main() -> None:
    """Read the configuration, then requests until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the driver's business
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    faulthandler.register(signal.SIGUSR1, file=config["stacks"], all_threads=True)
    try:
        scorers = _scorers(config)
    except Exception as error:
        traceback.print_exc()
        _say(answers, {"refused": f"{type(error).__name__}: {error}"})
        return
    _say(answers, {"ready": True})
    for line in sys.stdin:
        task = json.loads(line)
        request = RewardRequest(**task["request"])
        for name in task["rewards"]:
            _say(answers, _answer(scorers[name], request))


def _scorers(config: dict[str, Any]) -> dict[str, Scorer]:
    data = Data.model_validate_json(config["data"])
    rewards = [Reward.model_validate_json(text) for text in config["rewards"]]
    base_dir = Path(config["base_dir"])
    return {reward.name: make_scorer(reward, data, base_dir) for reward in rewards}


def _answer(scorer: Scorer, request: RewardRequest) -> dict[str, Any]:
    try:
        return {"score": scorer(request)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
