"""Tools that answer at once, when they are told to, or late, and the turns of samples that call them."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from rollouts import sampling
from syllables import ENDS, Syllables

from rljob_api.spec.tools import Tool
from rljob_runtime.rollout.rollout_engine import Generated, Sampling, ToolSettings
from rljob_runtime.task.tools.answers import Answer
from rljob_runtime.task.tools.call_format import CallFormat

CALC = Tool(name="calc", type="calculator", max_answer_tokens=32, timeout_seconds=60)


class Echo:
    """Answers 77 at once, in the calling thread."""

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        done(Answer(text="77", outcome="ok", seconds=0.0))

    def most_seconds(self, calls: int) -> float:
        return 60.0


class Held(Echo):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        self.waiting.put(lambda: done(Answer(text="7", outcome="ok", seconds=1.0)))


class Late(Echo):
    """Answers in threads, the third call before the second."""

    def __init__(self) -> None:
        self._calls = 0

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        self._calls += 1
        answer = Answer(text="77", outcome="ok", seconds=0.01)
        threading.Timer(0.03 / (self._calls % 3 + 1), done, [answer]).start()


def settings(pool: Any, turns: int = 4) -> ToolSettings:
    """The calculator, of whom nobody asks more than `pool` answers."""
    return ToolSettings(form=CallFormat(Syllables(), [CALC]), pool=pool, most_turns=turns)  # type: ignore[arg-type]


def how(pool: Any, turns: int = 4, **changes: Any) -> Sampling:
    """Drawn with these tools."""
    given: dict[str, Any] = {"eos_ids": ENDS, "max_response_length": 40}
    return sampling(tools=settings(pool, turns), **(given | changes))


def drawn_ids(sample: Generated) -> list[int]:
    """Tokens of the policy alone."""
    return [t for t, drawn in zip(sample.token_ids, sample.drawn, strict=True) if drawn]


def turns_of(sample: Generated) -> list[list[int]]:
    """The drawn tokens of each turn."""
    found: list[list[int]] = [[]]
    before = True
    for token, drawn in zip(sample.token_ids, sample.drawn, strict=True):
        if drawn and not before:
            found.append([])
        if drawn:
            found[-1].append(token)
        before = drawn
    return found
