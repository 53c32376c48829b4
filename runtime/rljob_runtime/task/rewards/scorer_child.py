"""A child process that scores: one line in for a response, one line out for each of its rewards.

Started by `scorer_pool`. Ends with its parent, even while a score hangs. What rewards print goes to stderr,
so that it never mixes with the answers. Rewards that are restricted are scored in a fork of it.
"""

import faulthandler
import gc
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.restricted_scorers import RestrictedScorers, answer_of
from rljob_runtime.task.rewards.scorers import Scorer, raw_scorer, with_threshold

IDLE_SECONDS = 0.005
RAW = "raw/"
"""Before the name of a scorer without its threshold."""


def main() -> None:
    """Read the configuration, then requests until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the driver's business
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    try:
        scorers = _Scorers(config)
    except Exception as error:
        traceback.print_exc()
        _say(answers, {"refused": f"{type(error).__name__}: {error}"})
        return
    _say(answers, {"ready": True})
    while line := sys.stdin.readline():
        task = json.loads(line)
        if "renew" in task:  # what is asked next is there already
            scorers.renew()
            continue
        request = RewardRequest(**task["request"])
        for name in task["rewards"]:
            _say(answers, scorers.score(name, request, raw=task.get("raw", False)))
        if not select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            scorers.prepare()


class _Scorers:
    """Those of all rewards, here and in the fork."""

    def __init__(self, config: dict[str, Any]) -> None:
        data = Data.model_validate_json(config["data"])
        rewards = [Reward.model_validate_json(text) for text in config["rewards"]]
        base_dir, self._stacks = Path(config["base_dir"]), config["stacks"]
        self._readable = list(sys.path)  # without the folders of users' files
        raw = {reward.name: raw_scorer(reward, data, base_dir) for reward in rewards}
        self._scorers = {r.name: with_threshold(raw[r.name], r) for r in rewards}
        restricted = [reward.name for reward in rewards if reward.is_restricted]
        self._fork: RestrictedScorers | None = None
        if restricted:
            given = {name: self._scorers[name] for name in restricted}
            given |= {RAW + name: raw[name] for name in restricted}
            gc.collect()
            gc.freeze()  # a collection would write into, and so copy, all of the parent's memory
            self._fork = self._forked(given, restricted[0])
        faulthandler.register(
            signal.SIGUSR1, file=self._stacks, all_threads=True, chain=bool(restricted)
        )
        self._restricted = {*restricted}

    def _forked(self, scorers: dict[str, Scorer], first: str) -> RestrictedScorers:
        try:
            fork = RestrictedScorers(scorers, stacks=self._stacks, readable=self._readable)
        except ConfigError as error:
            raise ConfigError(
                f"reward {first} (spec.rewards) {error}; set its restricted: false, and responses may change "
                "what scores them"
            ) from error
        signal.signal(signal.SIGUSR1, lambda *_: fork.tell_stacks())
        return fork

    def score(self, name: str, request: RewardRequest, *, raw: bool) -> dict[str, Any]:
        """raw: without its threshold, of one that is restricted."""
        if self._fork is not None and name in self._restricted:
            return self._fork.score(RAW + name if raw else name, request)
        return answer_of(self._scorers[name], request)

    def prepare(self) -> None:
        """While nothing is asked."""
        if self._fork is not None:
            self._fork.prepare()

    def renew(self) -> None:
        """After a batch."""
        if self._fork is not None:
            self._fork.renew()


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
