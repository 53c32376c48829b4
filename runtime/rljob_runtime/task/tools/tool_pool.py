"""The processes of a device's tools: calls go out in threads and their answers come back, each by its
deadline.

Made with the device's states; used by the `torch` rollout engine through `turns`. A process that hangs or
dies is replaced, and the call answered with what happened.
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
"""What a tool that keeps its own deadline has beyond it to say so, before its process is killed."""

log = logging.getLogger(__name__)


class ToolPool:
    """The job's tools on one device. Raises ConfigError where one cannot work here."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._lines = {tool.name: _Line(tool) for tool in tools}

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        """Call a tool; `done` gets the answer, once, in a thread of the pool."""
        self._lines[tool].call(text, done)

    def most_seconds(self, calls: int) -> float:
        """By when one of so many calls is answered for certain, however they are spread over the tools."""
        return max(line.most_seconds(calls) for line in self._lines.values())

    def close(self) -> None:
        """End all processes; calls on their way are not answered."""
        for line in self._lines.values():
            line.close()


class _Line:
    """One tool: its processes, made as they are needed, the first at once."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._config = json.dumps({"tool": tool.model_dump_json(by_alias=True)})
        self._free: queue.LifoQueue[LineChild | None] = queue.LifoQueue()
        for _ in range(tool.concurrency - 1):
            self._free.put(None)
        try:
            first = LineChild(CHILD, self._config)
        except StartFailed as error:
            name = f"the process of tool {tool.name} (spec.rollout.tools) did not start: it "
            raise ConfigError(str(error) if error.refused else f"{name}{error}") from error
        self._free.put(first)
        self._children, self._lock = [first], threading.Lock()
        self._threads = ThreadPoolExecutor(tool.concurrency, f"tool-{tool.name}")

    def call(self, text: str, done: Callable[[Answer], None]) -> None:
        called = time.monotonic()

        def work() -> None:
            answer = self._answer(text, called)
            done(answer)

        self._threads.submit(work)

    def most_seconds(self, calls: int) -> float:
        """Every call before may take its whole time, and lose its process."""
        each = self._tool.timeout_seconds + GRACE_SECONDS + START_SECONDS
        return each * (-(-calls // self._tool.concurrency) + 1)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for child in self._children:
                child.kill()

    def _answer(self, text: str, called: float) -> Answer:
        child = self._free.get(timeout=START_SECONDS)  # there are as many as threads
        try:
            if child is None:
                child = LineChild(CHILD, self._config)
                with self._lock:
                    self._children.append(child)
            child.send({"text": text})
            said = child.answer(self._tool.timeout_seconds + GRACE_SECONDS)
        except Exception as error:  # a thread that raises would leave the sample waiting for ever
            log.warning("tool=%s could not be called: %s", self._tool.name, error)
            said = {"lost": True, "error": "could not be called"}
        finally:
            self._free.put(child)
        seconds = time.monotonic() - called
        if not said.get("lost"):
            return Answer(text=said["text"], outcome=said["outcome"], seconds=seconds)
        if said.get("hung"):
            limit = f"{self._tool.timeout_seconds:g} s"
            return Answer(
                text=f"error: took longer than {limit}", outcome="timeout", seconds=seconds
            )
        return Answer(text=f"error: {said['error']}", outcome="error", seconds=seconds)
