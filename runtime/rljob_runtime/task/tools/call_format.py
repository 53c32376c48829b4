"""Parse calls from the policy's tokens, and encode answers as tokens: the form that docs/tools.md
describes.

A call is `<name>input</name>` in the text of one turn, and ends the turn with the token that completes
it. Its answer follows as `<result>answer</result>`. Tokens that were drawn or inserted are never encoded
again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.spec.tools import RESULT, Tool
from rljob_runtime.task.tokenizer import MAX_BYTES_OF_CHARACTER, Tokenizer, cut_to_fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The call of a tool that ends a turn."""

    tool: str
    text: str


class CallFormat:
    """Parses calls and encodes answers for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[Tool]) -> None:
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}
        self._tail = max(len(tool.closing) for tool in tools) + MAX_BYTES_OF_CHARACTER
        # For all other tokens, most of them, nothing is decoded.
        self._completing = frozenset(
            token for token in range(tokenizer.vocab_size) if ">" in tokenizer.decode([token])
        )

    def completes(self, token: int) -> bool:
        """Return whether this token could be the last one of a call."""
        return token in self._completing

    def call(self, turn_ids: list[int]) -> Call | None:
        """Return the call that ends in the last tokens of a turn, if any."""
        tail = self._tokenizer.decode(turn_ids[-self._tail :])
        ended = [(tail.rfind(tool.closing), tool) for tool in self._tools.values()]
        offset, tool = max(ended, key=lambda pair: pair[0])
        if offset < 0:
            return None
        before = self._tokenizer.decode(turn_ids).rpartition(tool.closing)[0]
        _, opening, text = before.rpartition(tool.opening)
        return Call(tool=tool.name, text=text) if opening else None

    def answer_ids(self, tool: str, text: str) -> list[int]:
        """Return the tokens of an answer, at most the tool's maxAnswerTokens; shortened text ends in
        three dots. None of them is a special token, whatever the text."""
        return cut_to_fit(text, self._tools[tool].max_answer_tokens, self._tagged)

    def _tagged(self, text: str) -> list[int]:
        return self._tokenizer.plain(f"<{RESULT}>{text}</{RESULT}>")
