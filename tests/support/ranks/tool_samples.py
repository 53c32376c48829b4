"""Tools that answer at once, when they are told to, or late, and the turns of samples that call them."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rollouts import sampling
from syllables import ENDS, Syllables

from rljob_api.spec.tools import Tool
from rljob_runtime.models.loading import load_policy
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling, ToolSettings
from rljob_runtime.samples.sample import SampleBatch
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


def both_logprobs(
    model: Path, groups: Sequence[PromptGroup], found: Mapping[str, Generated]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all drawn tokens: as training finds them behind what was put, and as they were drawn."""
    samples = [found[uid] for group in groups for uid in group.uids]
    batch = SampleBatch(
        prompts=[torch.tensor(group.token_ids) for group in groups],
        group_of_B=torch.arange(len(groups)).repeat_interleave(len(groups[0].uids)),
        responses=[torch.tensor(drawn_ids(sample)) for sample in samples],
        full_responses=[torch.tensor(sample.token_ids) for sample in samples],
        drawn=[torch.tensor(sample.drawn) for sample in samples],
    )
    with torch.no_grad():
        trained = load_policy(model, dtype=torch.float32).logprobs(batch, temperature=1.0)
    return trained.logprobs_T, torch.tensor([x for sample in samples for x in sample.logprobs])
