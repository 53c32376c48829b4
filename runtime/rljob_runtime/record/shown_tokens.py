"""Tokens of the samples in a step's event: ids, texts, log-probs of the rollout and versions.

Called by the reward worker. Without torch; the number of tokens per group keeps the event small.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rljob_runtime.record.event_types import Tokens
from rljob_runtime.record.events import plain

MOST_TOKENS = 48
"""Number of a response's first tokens that are shown."""
GROUP_BYTES = 2560
"""Limit for a group's tokens in the event; three groups take less than 8 KiB."""
DIGITS = 4

Texts = Callable[[Sequence[int]], list[str]]
"""Decodes each token separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response with all of its tokens.

    ids: all tokens; drawn: whether the policy drew each token; logprobs, versions: of the drawn tokens, in
    order. version: of the weights that drew the first one. versions: empty if they are not all known.
    """

    ids: Sequence[int]
    drawn: Sequence[bool]
    logprobs: Sequence[float]
    version: int
    versions: Sequence[int] = ()

    def first_tokens(self, number: int, texts: Texts) -> Tokens:
        """Return the first tokens in the form of the event."""
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
    """Select the tokens to show for each response of a group; None if the byte limit is reached.

    The best and the worst response come first.
    """
    order = sorted(range(len(responses)), key=lambda i: -rewards[i])
    order = [*order[:1], *order[1:][-1:], *order[1:-1]]
    shown: list[Tokens | None] = [None] * len(responses)
    bytes_left = GROUP_BYTES
    for i in order:
        number = min(len(responses[i].ids), MOST_TOKENS)
        while number:
            tokens = responses[i].first_tokens(number, texts)
            size = len(json.dumps({"tokens": plain(tokens)}, separators=(",", ":")))
            if size <= bytes_left:
                shown[i], bytes_left = tokens, bytes_left - size
                break
            number = min(number - 1, number * bytes_left // size)
    return shown


def _spread(values: Iterable[Any], drawn: Sequence[bool]) -> list[Any]:
    """Return the value of each drawn token, and None for the others."""
    remaining = iter(values)
    return [next(remaining, None) if was_drawn else None for was_drawn in drawn]
