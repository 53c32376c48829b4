"""Manage the pool of reward processes: score requests in order, kill scores that exceed their deadline.

Called by the reward worker. A hung or crashed child is replaced. Its current score has failed, and the
request's other rewards continue in the new child.
"""

import json
import secrets
import string
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.children.line_child import LineChild, StartFailed
from rljob_runtime.errors import GuardStop, RewardError
from rljob_runtime.task.rewards.requests import RewardRequest, RewardResult

CHILD = "rljob_runtime.task.rewards.scorer_child"
COMPARED = ("dataset", "math-verify")
"""Types of rewards for which a text without an answer is right for few answers, if any."""
LETTERS = 24
RESCORED = 8
"""Number of right responses of a batch that a new process scores again, for each child and reward."""
NEW_PROCESSES = 3
"""Number of new processes that must each find a response wrong, since some libraries decide by chance."""
CHANGED = (
    "No checkpoint has this batch: --resume goes on from the last one. Look among the samples of the last "
    "steps for what learned to do that, or use another reward"
)

__all__ = ["RewardPool", "RewardRequest", "RewardResult"]


def processes_of(rewards: Sequence[Reward]) -> int:
    """Return the number of children for the rewards: one if they compute, otherwise as many as
    services accept concurrently."""
    services = (reward.http or reward.judge for reward in rewards)
    return max((service.concurrency for service in services if service is not None), default=1)


@dataclass(slots=True)
class _Sample:
    """A uniform random sample of many requests."""

    retained: list[RewardRequest] = field(default_factory=list)
    num_seen: int = 0

    def add(self, request: RewardRequest) -> None:
        """Add a request, which replaces a retained one at random once the sample is full."""
        self.num_seen += 1
        if len(self.retained) < RESCORED:
            self.retained.append(request)
        elif (index := secrets.randbelow(self.num_seen)) < RESCORED:
            self.retained[index] = request


class RewardPool:
    """A pool of `processes` children, each with all of the job's rewards.

    base_dir: folder that the rewards' paths are relative to. Raises RewardError if a child cannot start,
    with its output.
    """

    def __init__(
        self, rewards: Sequence[Reward], data: Data, *, processes: int, base_dir: Path
    ) -> None:
        self._rewards = {reward.name: reward for reward in rewards}
        config = {
            "rewards": [reward.model_dump_json(by_alias=True) for reward in rewards],
            "data": data.model_dump_json(by_alias=True),
            "base_dir": str(base_dir),
        }
        restricted = [reward for reward in rewards if reward.is_restricted]
        self._restricts = bool(restricted)
        self._compared = [reward.name for reward in restricted if reward.type in COMPARED]
        self._last: dict[LineChild, RewardRequest] = {}
        self._right: dict[tuple[LineChild, str], _Sample] = defaultdict(_Sample)
        number = processes if rewards else 0
        with _starting():
            self._children = [
                LineChild(CHILD, json.dumps(config), writes_stacks=True) for _ in range(number)
            ]
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="reward")

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """Return one result per request, in order. Raises GuardStop if a response has taken over the
        scorer."""
        count = max(len(self._children), 1)
        shares = [list(range(first, len(requests), count)) for first in range(count)]
        results: list[RewardResult | None] = [None] * len(requests)

        def work(child: LineChild, indices: list[int]) -> None:
            for i in indices:
                results[i] = self._score(child, requests[i])
                self._last[child] = requests[i]

        if not self._rewards:
            return [RewardResult(total=0.0, parts={}, errors={}) for _ in requests]
        for future in [
            self._threads.submit(work, child, share)
            for child, share in zip(self._children, shares, strict=True)
        ]:
            future.result()
        return [result for result in results if result is not None]

    def end_batch(self) -> None:
        """End a batch: where rewards are restricted, have later responses scored by new processes without
        any earlier state.

        Raises GuardStop if several new processes find wrong what was right before: some of the batch's
        responses, or a text without an answer. Then a response has changed the scorer.
        """
        last, self._last = self._last, {}
        right, self._right = self._right, defaultdict(_Sample)
        for child, request in last.items() if self._restricts else ():
            text = "".join(secrets.choice(string.ascii_lowercase) for _ in range(LETTERS))
            nothing = replace(request, response=text, transcript=text)
            right_before = [
                (name, nothing, True)
                for name in self._compared
                if self._is_right(child, name, nothing, raw=True)
            ]
            self._renew(child)
            for name in self._compared:
                right_before += [
                    (name, rescored, False) for rescored in right[child, name].retained
                ]
            for name, rescored, raw in right_before:
                if self._is_wrong(child, name, rescored, raw=raw):
                    raise GuardStop(
                        f"reward {name} found {rescored.response[:80]!r} right, which {NEW_PROCESSES} new "
                        f"processes find wrong: a response has changed what scores. {CHANGED}"
                    )

    def _is_wrong(self, child: LineChild, name: str, request: RewardRequest, *, raw: bool) -> bool:
        """Return whether a new process, and then further ones, find the response wrong."""
        for number in range(NEW_PROCESSES):
            if number:
                self._renew(child)
            if self._is_right(child, name, request, raw=raw) is not False:
                return False
        return True

    def _renew(self, child: LineChild) -> None:
        with _starting():
            child.send({"renew": True})

    def _is_right(
        self, child: LineChild, name: str, request: RewardRequest, *, raw: bool
    ) -> bool | None:
        """Return whether the reward is 1 or more, or None if the score fails. raw: ignore the
        threshold."""
        with _starting():
            child.send({"request": request.fields(), "rewards": [name], "raw": raw})
        answer = self._answer(child, name)
        return None if "error" in answer else answer["score"] >= 1.0

    def _answer(self, child: LineChild, name: str) -> dict[str, Any]:
        """Return the child's next answer. Raises GuardStop if a response has taken over the scorer."""
        answer = child.answer(self._rewards[name].timeout_seconds)
        if "changed" in answer:
            raise GuardStop(f"reward {name}: {answer['error']}. {CHANGED}")
        return answer

    def stacks(self) -> dict[str, str]:
        """Return the stacks of each scoring child, by `scorer PID`, even of one that is busy in a
        library's code."""
        stacks = [report for child in self._children if (report := child.stacks())]
        return {f"scorer {process}": text for process, text in stacks}

    def close(self) -> None:
        """End every child process."""
        self._threads.shutdown()
        for child in self._children:
            child.kill()

    def _score(self, child: LineChild, request: RewardRequest) -> RewardResult:
        left = deque(self._rewards)
        fields = request.fields()
        parts: dict[str, float] = {}
        errors: dict[str, str] = {}
        while left:
            with _starting():
                child.send({"request": fields, "rewards": list(left)})
            while left:
                name = left.popleft()
                answer = self._answer(child, name)
                parts[name] = answer.get("score", 0.0)
                if parts[name] >= 1.0 and name in self._compared:
                    self._right[child, name].add(request)
                if "error" in answer:
                    errors[name] = f"reward {name}: {answer['error']}"
                if answer.get("lost"):
                    break
        total = sum(self._rewards[name].weight * score for name, score in parts.items())
        return RewardResult(total=total, parts=parts, errors=errors)


@contextmanager
def _starting() -> Iterator[None]:
    try:
        yield
    except StartFailed as error:
        reason = str(error) if error.refused else f"it {error}"
        raise RewardError(
            f"the process of the rewards (spec.rewards) did not start: {reason}"
        ) from error
