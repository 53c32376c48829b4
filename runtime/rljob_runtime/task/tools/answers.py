"""What comes of a call: an answer, and how it went. No torch."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "error", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """text: what the policy reads, the error where there was one. seconds: from the call on, with waiting
    for a free process."""

    text: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a sample, for the figures."""

    tool: str
    outcome: Outcome
    seconds: float


class Failed(Exception):
    """A call failed; the text is its answer."""


class TookTooLong(Exception):
    """A call reached its deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"error: took longer than {seconds:g} s")
