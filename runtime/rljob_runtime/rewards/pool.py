"""The pool of reward processes: scores requests in order, kills what exceeds its deadline.

Called by the reward worker. A hung or crashed child is replaced; the score that it was working on
is 0 with an error, and the request's other rewards go on in the new child.
"""

import json
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rljob_api.workload import Data, Reward
from rljob_runtime.errors import RewardError
from rljob_runtime.rewards.requests import RewardRequest, RewardResult

START_SECONDS = 120.0
READ_BYTES = 65_536

__all__ = ["RewardPool", "RewardRequest", "RewardResult"]


def processes_of(rewards: Sequence[Reward]) -> int:
    """Children that the rewards want: one where they compute, as many as requests may wait for services."""
    services = (reward.http or reward.judge for reward in rewards)
    return max((service.concurrency for service in services if service is not None), default=1)


class RewardPool:
    """`processes` children, each with all of the job's rewards.

    base_dir: folder that the rewards' paths are relative to. Raises RewardError when a child cannot
    start, with what it wrote.
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
        self._children = [_Child(json.dumps(config)) for _ in range(processes if rewards else 0)]
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="reward")

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result a request, in order."""
        count = max(len(self._children), 1)
        parts = [list(range(first, len(requests), count)) for first in range(count)]
        results: list[RewardResult | None] = [None] * len(requests)

        def work(child: _Child, indices: list[int]) -> None:
            for i in indices:
                results[i] = self._score(child, requests[i])

        if not self._rewards:
            return [RewardResult(total=0.0, parts={}, errors={}) for _ in requests]
        for future in [
            self._threads.submit(work, child, part)
            for child, part in zip(self._children, parts, strict=True)
        ]:
            future.result()
        return [result for result in results if result is not None]

    def close(self) -> None:
        """End every child."""
        self._threads.shutdown()
        for child in self._children:
            child.kill()

    def _score(self, child: "_Child", request: RewardRequest) -> RewardResult:
        left = deque(self._rewards)
        parts: dict[str, float] = {}
        errors: dict[str, str] = {}
        while left:
            child.send(request, list(left))
            while left:
                name = left.popleft()
                deadline = self._rewards[name].timeout_seconds
                answer = child.answer(deadline)
                parts[name] = answer.get("score", 0.0)
                if "error" in answer:
                    errors[name] = f"reward {name}: {answer['error']}"
                if answer.get("lost"):
                    break
        total = sum(self._rewards[name].weight * score for name, score in parts.items())
        return RewardResult(total=total, parts=parts, errors=errors)


class _Child:
    """One process; started at the first request and again after it was lost."""

    def __init__(self, config: str) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._buffer = b""
        self._start()

    def send(self, request: RewardRequest, rewards: list[str]) -> None:
        """Ask for these rewards of a request; one `answer` each."""
        if self._process is None:
            self._start()
        fields = {name: getattr(request, name) for name in RewardRequest.__slots__}
        self._write({"request": fields, "rewards": rewards})

    def answer(self, deadline_seconds: float) -> dict[str, Any]:
        """The next answer; `lost` with an error when the child hung or died."""
        line = self._line(deadline_seconds)
        if line is not None:
            return dict(json.loads(line))
        assert self._process is not None, "a lost child cannot answer"
        code = self._process.poll()
        what = (
            f"took longer than {deadline_seconds:g} s (timeoutSeconds) and was killed"
            if code is None
            else f"ended its process with exit status {code}"
        )
        self.kill()
        return {"lost": True, "error": what}

    def kill(self) -> None:
        """End the process and reap it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        assert process.stdout is not None and process.stdin is not None
        self._selector.unregister(process.stdout)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        self._buffer = b""

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "rljob_runtime.rewards.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdout is not None, "stdout is a pipe"
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._write(json.loads(self._config))
        answer = self.answer(START_SECONDS)
        if "error" in answer:
            raise RewardError(
                f"the process of the rewards (spec.rewards) did not start: it {answer['error']}; "
                "the log above says why"
            )

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(message) + "\n").encode())
        except BrokenPipeError:
            return  # `answer` tells what became of it

    def _line(self, deadline_seconds: float) -> bytes | None:
        """The next whole line, or None at the deadline or the pipe's end."""
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._buffer:
            if not self._selector.select(deadline_seconds):
                return None
            data = self._process.stdout.read(READ_BYTES)
            if not data:
                self._process.wait()
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line
