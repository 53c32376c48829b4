"""Tokens of the samples that a step's event shows: ids, texts, log-probs of the rollout and versions.

Called by the reward worker. No torch; of each group so few that the event stays small.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rljob_runtime.record.event_types import Tokens
from rljob_runtime.record.events import plain

MOST_TOKENS = 48
"""Of a response: its first ones."""
GROUP_BYTES = 2560
"""Of a group's tokens in the event; of three groups less than 8 KiB."""
DIGITS = 4

Texts = Callable[[Sequence[int]], list[str]]
"""The text of each token on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """ids: all tokens; drawn: of each, whether the policy drew it; logprobs, versions: of those drawn, in
    their order. version: of the weights that drew the first. versions: empty where each is not known."""

    ids: Sequence[int]
    drawn: Sequence[bool]
    logprobs: Sequence[float]
    version: int
    versions: Sequence[int] = ()

    def told(self, number: int, texts: Texts) -> Tokens:
        """The first tokens, as the event has them."""
        logprobs = _spread(self.logprobs, self.drawn[:number])
        versions = groupby(_spread(self.versions, self.drawn[:number]))
        return Tokens(
            ids=[*self.ids[:number]],
            texts=texts(self.ids[:number]),
            logprobs=[None if value is None else round(value, DIGITS) for value in logprobs],
            version=self.version,
            versions=[(version, len([*same])) for version, same in versions]
            if self.versions
            else None,
        )


def shown_tokens(
    responses: Sequence[Response], rewards: Sequence[float], *, texts: Texts
) -> list[Tokens | None]:
    """Of each response of a group what is told of its tokens; None where the bytes do not suffice.

    The best and the worst come first.
    """
    order = sorted(range(len(responses)), key=lambda i: -rewards[i])
    order = [*order[:1], *order[1:][-1:], *order[1:-1]]
    found: list[Tokens | None] = [None] * len(responses)
    left = GROUP_BYTES
    for i in order:
        number = min(len(responses[i].ids), MOST_TOKENS)
        while number:
            told = responses[i].told(number, texts)
            size = len(json.dumps({"tokens": plain(told)}, separators=(",", ":")))
            if size <= left:
                found[i], left = told, left - size
                break
            number = min(number - 1, number * left // size)
    return found


def _spread(values: Iterable[Any], drawn: Sequence[bool]) -> list[Any]:
    """Each drawn token's value, None for others."""
    each = iter(values)
    return [next(each, None) if was_drawn else None for was_drawn in drawn]
