"""What goes into a reward and what comes out."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """One response to score. entry: what the data set's own scorer needs, as JSON has it."""

    prompt: str
    response: str
    answer: str
    entry: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardResult:
    """total: weighted sum. parts: each reward's score before its weight. errors: by reward's name;
    a reward that failed counts 0."""

    total: float
    parts: dict[str, float]
    errors: dict[str, str]
