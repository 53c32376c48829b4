"""Run a device's tools in child processes: threads send the calls and receive each answer before its
deadline.

Created with the device's states; used by the `torch` rollout engine through `turns`. A process that hangs
or dies is replaced, and the answer of its call reports this.
"""

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from rljob_api.spec.tools import Tool
from rljob_runtime.children.line_child import START_SECONDS, LineChild, StartFailed
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.tools.answers import Answer

CHILD = "rljob_runtime.task.tools.tool_child"
GRACE_SECONDS = 2.0
"""Time beyond the deadline for a tool that keeps it itself to report this, before its process is
killed."""

log = logging.getLogger(__name__)


class ToolPool:
    """The job's tools on one device. Raises ConfigError if one cannot work here."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._processes = {tool.name: _ToolProcesses(tool) for tool in tools}

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        """Call a tool; `done` is called once with the answer, in a thread of the pool."""
        self._processes[tool].call(text, done)

    def most_seconds(self, calls: int) -> float:
        """Return the time within which one of so many calls is certain to be answered, for any
        distribution over the tools."""
        return max(line.most_seconds(calls) for line in self._processes.values())

    def close(self) -> None:
        """End all processes; pending calls are not answered."""
        for line in self._processes.values():
            line.close()


class _ToolProcesses:
    """The processes of one tool, started on demand, the first one immediately."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._config = json.dumps({"tool": tool.model_dump_json(by_alias=True)})
        self._free: queue.LifoQueue[LineChild | None] = queue.LifoQueue()
        for _ in range(tool.concurrency - 1):
            self._free.put(None)
        try:
            first = LineChild(CHILD, self._config)
        except StartFailed as error:
            prefix = f"the process of tool {tool.name} (spec.rollout.tools) did not start: it "
            raise ConfigError(str(error) if error.refused else f"{prefix}{error}") from error
        self._free.put(first)
        self._children, self._lock = [first], threading.Lock()
        self._threads = ThreadPoolExecutor(tool.concurrency, f"tool-{tool.name}")

    def call(self, text: str, done: Callable[[Answer], None]) -> None:
        """Queue a call; `done` is called once with the answer, in one of the tool's threads."""
        called_at = time.monotonic()

        def work() -> None:
            answer = self._answer(text, called_at)
            done(answer)

        self._threads.submit(work)

    def most_seconds(self, calls: int) -> float:
        """Return the time for so many calls: every earlier call may take its full time, and lose its
        process."""
        per_call = self._tool.timeout_seconds + GRACE_SECONDS + START_SECONDS
        return per_call * (-(-calls // self._tool.concurrency) + 1)

    def close(self) -> None:
        """Kill the tool's processes; calls that still wait are dropped without an answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for child in self._children:
                child.kill()

    def _answer(self, text: str, called_at: float) -> Answer:
        child = self._free.get(timeout=START_SECONDS)  # there is one per thread
        try:
            if child is None:
                child = LineChild(CHILD, self._config)
                with self._lock:
                    self._children.append(child)
            child.send({"text": text})
            answer = child.answer(self._tool.timeout_seconds + GRACE_SECONDS)
        except Exception as error:  # a thread that raises would leave the sample waiting for ever
            log.warning("tool=%s could not be called: %s", self._tool.name, error)
            answer = {"lost": True, "error": "could not be called"}
        finally:
            self._free.put(child)
        seconds = time.monotonic() - called_at
        if not answer.get("lost"):
            return Answer(text=answer["text"], outcome=answer["outcome"], seconds=seconds)
        if answer.get("hung"):
            limit = f"{self._tool.timeout_seconds:g} s"
            return Answer(
                text=f"error: took longer than {limit}", outcome="timeout", seconds=seconds
            )
        return Answer(text=f"error: {answer['error']}", outcome="error", seconds=seconds)
