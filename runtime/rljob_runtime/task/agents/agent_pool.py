"""Run a device's agents in child processes: threads send the sessions and receive each result before its
deadline.

Created with the device's states; used by the rollout through `agent_turns`. A process that hangs or dies
is replaced, and its session ends with an error.
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
    """The result of a session. reward: None if the agent returned none. error: why the session failed,
    or empty. seconds: time since its start."""

    reward: float | None = None
    error: str = ""
    seconds: float = 0.0


class AgentPool:
    """The processes of the job's agent, started on demand, the first one immediately. Raises
    ConfigError if the agent cannot run here."""

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
        """Play a session once a process is free.

        begin: called at that time; returns the session for the agent, or None if its result is no longer
        needed. done: called once with the result, in a thread of the pool.
        """

        def work() -> None:
            session = begin()
            if session is not None:
                done(self._play(session))

        self._threads.submit(work)

    @property
    def most_seconds(self) -> float:
        """Return the time within which a running session is certain to send a request or to end."""
        return self._agent.timeout_seconds + 2 * START_SECONDS

    def close(self) -> None:
        """End all processes; results of their sessions are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for child in self._children:
                child.kill()

    def _play(self, session: dict[str, Any]) -> Played:
        child, began = (
            self._free.get(timeout=START_SECONDS),
            time.monotonic(),
        )  # there is one per thread
        try:
            if child is None:
                child = LineChild(CHILD, self._config)
                with self._lock:
                    self._children.append(child)
            child.send(session)
            answer = child.answer(self._agent.timeout_seconds)
        except Exception as error:  # a thread that raises would leave the sample waiting for ever
            log.warning("agent=%s could not be played: %s", self._agent.function, error)
            answer = {"lost": True, "error": "could not be started"}
        finally:
            self._free.put(child)
        error_text = f"it {answer['error']}" if answer.get("lost") else answer.get("error", "")
        return Played(
            reward=answer.get("reward"), error=error_text, seconds=time.monotonic() - began
        )
