"""Decode moves from the policy's tokens, and encode observations as tokens: the form that
docs/environments.md describes.

Tokens that were drawn or inserted are never encoded again.
"""

from rljob_runtime.task.tokenizer import Tokenizer, cut_to_fit


class Conversation:
    """Decodes moves and encodes observations for one tokenizer. chat: whether they are messages of the
    chat template."""

    def __init__(self, tokenizer: Tokenizer, *, chat: bool) -> None:
        self._tokenizer, self._chat = tokenizer, chat

    def move(self, turn_ids: list[int]) -> str:
        """Return the text of a turn, with the stop string that ended it; end tokens have no text."""
        return self._tokenizer.decode(turn_ids)

    def observation_ids(self, text: str, *, limit: int, ended: bool) -> list[int]:
        """Return the tokens that follow a turn.

        limit: most tokens of the text, without those of the template; a longer text is cut and ends in
        three dots. ended: whether the turn has an end token.
        """
        if not self._chat:
            return cut_to_fit(text, limit, self._tokenizer.plain)
        before, after = self._tokenizer.between_turns(ended=ended)
        return [*before, *cut_to_fit(text.strip(), limit, self._tokenizer.plain), *after]
