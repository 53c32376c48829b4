"""Moves in what the policy draws, and observations as tokens: the form that docs/environments.md describes.

Nothing that was drawn or put is ever encoded again.
"""

from rljob_runtime.task.tokenizer import Tokenizer, cut_to_fit


class Conversation:
    """Reads moves and writes observations for one tokenizer. chat: whether they are messages of the chat
    template."""

    def __init__(self, tokenizer: Tokenizer, *, chat: bool) -> None:
        self._tokenizer, self._chat = tokenizer, chat

    def move(self, turn_ids: list[int]) -> str:
        """The text of a turn, with the stop string that ended it; end tokens give nothing."""
        return self._tokenizer.decode(turn_ids)

    def observation_ids(self, text: str, *, limit: int, ended: bool) -> list[int]:
        """Tokens behind a turn. limit: most of the text, which is cut and ends in three dots; the template's
        own stand around it. ended: whether the turn has an end token."""
        if not self._chat:
            return cut_to_fit(text, limit, self._tokenizer.plain)
        before, after = self._tokenizer.between_turns(ended=ended)
        return [*before, *cut_to_fit(text.strip(), limit, self._tokenizer.plain), *after]
