"""The processes of a device's agents: sessions go out in threads, and what they returned comes back, each by
its deadline.

Made with the device's states; used by the rollout through `agent_turns`. A process that hangs or dies is
replaced, and its session ends with an error.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.spec.agent import Agent
from rljob_runtime.children.line_child import START_SECONDS, LineChild, StartFailed
from rljob_runtime.errors import ConfigError

CHILD = "rljob_runtime.task.agents.agent_child"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a session ended. reward: None where the agent returned none. error: why it did not end by itself,
    empty where it did. seconds: from its begin."""

    reward: float | None = None
    error: str = ""
    seconds: float = 0.0


class AgentPool:
    """Processes of the job's agent, made as they are needed, the first at once. Raises ConfigError where it
    cannot work here."""

    def __init__(self, agent: Agent, base_dir: Path) -> None:
        self._agent = agent
        self._config = json.dumps(
            {"path": str((base_dir / agent.path).absolute()), "function": agent.function}
        )
        self._free: queue.LifoQueue[LineChild | None] = queue.LifoQueue()
        for _ in range(agent.concurrency - 1):
            self._free.put(None)
        try:
            first = LineChild(CHILD, self._config)
        except StartFailed as error:
            raise ConfigError(
                f"the agent {agent.function} of {agent.path} (spec.rollout.agent) did not start: {error}"
            ) from error
        self._free.put(first)
        self._children, self._lock = [first], threading.Lock()
        self._threads = ThreadPoolExecutor(agent.concurrency, "agent")

    def play(
        self, begin: Callable[[], dict[str, Any] | None], done: Callable[[Played], None]
    ) -> None:
        """Play a session once there is a process for it. begin: called then; what the agent is told, None
        where nobody waits for it any more. `done` gets how it ended, once, in a thread of the pool."""

        def work() -> None:
            told = begin()
            if told is not None:
                done(self._play(told))

        self._threads.submit(work)

    @property
    def most_seconds(self) -> float:
        """By when a session that is played has asked or ended for certain."""
        return self._agent.timeout_seconds + 2 * START_SECONDS

    def close(self) -> None:
        """End all processes; nobody hears of their sessions."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for child in self._children:
                child.kill()

    def _play(self, told: dict[str, Any]) -> Played:
        child, began = self._free.get(timeout=START_SECONDS), time.monotonic()  # as many as threads
        try:
            if child is None:
                child = LineChild(CHILD, self._config)
                with self._lock:
                    self._children.append(child)
            child.send(told)
            said = child.answer(self._agent.timeout_seconds)
        except Exception as error:  # a thread that raises would leave the sample waiting for ever
            log.warning("agent=%s could not be played: %s", self._agent.function, error)
            said = {"lost": True, "error": "could not be started"}
        finally:
            self._free.put(child)
        why = f"it {said['error']}" if said.get("lost") else said.get("error", "")
        return Played(reward=said.get("reward"), error=why, seconds=time.monotonic() - began)
