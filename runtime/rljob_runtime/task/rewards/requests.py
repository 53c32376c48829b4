"""What goes into a reward and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """One response to score. entry: what the data set's own scorer needs, as JSON has it. With turns,
    response is the last one, behind what was put before it, and transcript everything; else they are the
    same."""

    prompt: str
    response: str
    answer: str
    entry: dict[str, Any]
    transcript: str = ""

    def fields(self) -> dict[str, Any]:
        """By name, as JSON has them; nothing is copied."""
        return {name: getattr(self, name) for name in RewardRequest.__slots__}


def last_turn(mask: Sequence[int]) -> int:
    """Where the last turn begins: behind the last token that was not drawn."""
    return next((place + 1 for place in reversed(range(len(mask))) if not mask[place]), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """total: weighted sum. parts: each reward's score before its weight. errors: by reward's name;
    a score that failed is 0 in both."""

    total: float
    parts: dict[str, float]
    errors: dict[str, str]
