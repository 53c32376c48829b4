"""Define the answer of a tool call, and its outcome. No torch."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "error", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a tool. text: what the policy reads, including any error. seconds: time since the
    call, including the wait for a free process."""

    text: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of a sample, for the figures."""

    tool: str
    outcome: Outcome
    seconds: float


class Failed(Exception):
    """Raised if a call failed; the text is its answer."""


class TookTooLong(Exception):
    """Raised if a call reached its deadline."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"error: took longer than {seconds:g} s")
