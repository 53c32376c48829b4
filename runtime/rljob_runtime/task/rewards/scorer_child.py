"""Score responses in a child process: it reads one line per response and writes one line per reward.

Started by `scorer_pool`. Ends with its parent, even while a score hangs. Output of rewards goes to
stderr, so that it never mixes with the answers. Restricted rewards are scored in a fork of this process.
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
from rljob_runtime.task.rewards.restricted_scorers import RestrictedScorers, score_or_error
from rljob_runtime.task.rewards.scorers import Scorer, raw_scorer, with_threshold

IDLE_SECONDS = 0.005
RAW = "raw/"
"""Prefix of the name of a scorer without its threshold."""


def main() -> None:
    """Read the configuration, then score requests until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles the terminal's Ctrl-C
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    config = json.loads(sys.stdin.readline())
    try:
        scorers = _Scorers(config)
    except Exception as error:
        traceback.print_exc()
        _write(answers, {"refused": f"{type(error).__name__}: {error}"})
        return
    _write(answers, {"ready": True})
    while line := sys.stdin.readline():
        task = json.loads(line)
        if "renew" in task:  # the next request is already in the pipe
            scorers.renew()
            continue
        request = RewardRequest(**task["request"])
        for name in task["rewards"]:
            _write(answers, scorers.score(name, request, raw=task.get("raw", False)))
        if not select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            scorers.prepare()


class _Scorers:
    """The scorers of all rewards, in this process and in the fork."""

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
            fork_scorers = {name: self._scorers[name] for name in restricted}
            fork_scorers |= {RAW + name: raw[name] for name in restricted}
            gc.collect()
            gc.freeze()  # a collection would write into, and so copy, all of the parent's memory
            self._fork = self._make_fork(fork_scorers, restricted[0])
        faulthandler.register(
            signal.SIGUSR1, file=self._stacks, all_threads=True, chain=bool(restricted)
        )
        self._restricted = {*restricted}

    def _make_fork(self, scorers: dict[str, Scorer], first: str) -> RestrictedScorers:
        try:
            fork = RestrictedScorers(scorers, stacks=self._stacks, readable=self._readable)
        except ConfigError as error:
            raise ConfigError(
                f"reward {first} (spec.rewards) {error}; set its restricted: false, and responses may change "
                "what scores them"
            ) from error
        signal.signal(signal.SIGUSR1, lambda *_: fork.dump_stacks())
        return fork

    def score(self, name: str, request: RewardRequest, *, raw: bool) -> dict[str, Any]:
        """Score a request by one reward. raw: without the threshold, for restricted rewards only."""
        if self._fork is not None and name in self._restricted:
            return self._fork.score(RAW + name if raw else name, request)
        return score_or_error(self._scorers[name], request)

    def prepare(self) -> None:
        """Prepare the next fork while there are no requests."""
        if self._fork is not None:
            self._fork.prepare()

    def renew(self) -> None:
        """Replace the fork after a batch."""
        if self._fork is not None:
            self._fork.renew()


def _write(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")


if __name__ == "__main__":
    main()
