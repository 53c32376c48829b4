"""A tokenizer whose conversations are seen at a glance, and sessions of agents that are asked by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from game_samples import Letters
from syllables import ENDS

from rljob_runtime.rollout.agents.session import AgentSession, AgentTurn, SessionLimits
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.task.agents.chat_request import ChatRequest, answer_message, read_request

OPENING, ASK = 5, 6
"""Before a conversation, and before an answer."""


class ChatLetters(Letters):
    """Messages are their signs, an answer's with an end token behind; ASK stands before each answer."""

    def conversation(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[int]:
        return [OPENING, *self.behind_answer(messages, tools, ended=True)]

    def behind_answer(
        self, messages: Sequence[Mapping[str, Any]], tools: Any, *, ended: bool
    ) -> list[int]:
        found = [] if ended else [ENDS[0]]
        for message in messages:
            found += self.plain(message["content"])
            found += [ENDS[0]] * (message["role"] == "assistant")
        return [*found, ASK]


def limits(**changes: Any) -> SessionLimits:
    """Of sessions with 4 answers and 40 tokens."""

    def say(ids: list[int], number: int, tools: bool) -> dict[str, Any]:
        text = Letters().decode(ids)
        return answer_message(text, text, number=number, tools=tools)

    given: dict[str, Any] = {"most_turns": 4, "most_tokens": 40, "scored": True, "to_message": say}
    return SessionLimits(**(given | changes))


def session(**changes: Any) -> AgentSession:
    """Of a sample `0/0`."""
    group = PromptGroup(group="0", token_ids=[OPENING], uids=["0/0"], seeds=[77], task="{}")
    return AgentSession(group=group, tokenizer=ChatLetters(), limits=limits(**changes))  # type: ignore[arg-type]


def request(*texts: str, retry: bool = False, **more: Any) -> ChatRequest:
    """A conversation of a user and the policy, who speak in turns."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return read_request({"model": "m", "messages": messages, **more}, retry=retry)


def draw(
    asked: AgentSession, turn: AgentTurn, text: str, *, ended: bool = True, version: int = 0
) -> None:
    """Let the policy answer a turn."""
    ids = Letters().plain(text) + [ENDS[0]] * ended
    made = Generated(
        uid=f"0/0 {turn.number}",
        token_ids=ids,
        logprobs=[-1.0 - turn.number] * len(ids),
        finish="stop" if ended else "budget",
        version=version,
    )
    asked.answer(turn, made)
