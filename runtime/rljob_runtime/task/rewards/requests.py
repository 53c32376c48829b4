"""Define the requests to rewards and their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """A response to score. entry: what the data set's own scorer needs, as JSON. response: with turns,
    the last one. transcript: with turns, the last response and everything before it; otherwise equal
    to the response."""

    prompt: str
    response: str
    answer: str
    entry: dict[str, Any]
    transcript: str = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields by name, as in JSON; nothing is copied."""
        return {name: getattr(self, name) for name in RewardRequest.__slots__}


def last_turn(mask: Sequence[int]) -> int:
    """Return the index at which the last turn begins: after the last token that was not drawn."""
    return next((index + 1 for index in reversed(range(len(mask))) if not mask[index]), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """The result of all rewards for one response. total: weighted sum. parts: each reward's score
    before its weight. errors: by reward's name; a score that failed is 0 in both."""

    total: float
    parts: dict[str, float]
    errors: dict[str, str]
