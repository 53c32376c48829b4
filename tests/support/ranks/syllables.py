"""A tokenizer whose tokens are tags and digits, so that a model with random weights calls tools by chance."""

from collections.abc import Sequence

ENDS = (3, 4)
SYLLABLES = {**dict.fromkeys(range(5, 21), "<calc>"), **dict.fromkeys(range(21, 37), "</calc>")}
DIGITS = range(37, 47)
LETTERS = range(47, 71)
RESULT_OPEN, RESULT_CLOSE = 47, 48


class Syllables:
    """71 tokens: 16 open a call of `calc`, 16 close one, 10 are digits, the others letters."""

    eos_ids = ENDS
    vocab_size = 71

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._text(token) for token in ids)

    def plain(self, text: str) -> list[int]:
        inner = text.removeprefix("<result>").removesuffix("</result>")
        digits = [DIGITS[int(sign)] for sign in inner if sign.isdigit()]
        return [RESULT_OPEN, *digits, RESULT_CLOSE]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    continuation = chat = encode

    def _text(self, token: int) -> str:
        if token in DIGITS:
            return str(token - DIGITS[0])
        return SYLLABLES.get(token, chr(token) if token in LETTERS else "")
