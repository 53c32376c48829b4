"""Texts for a terminal, which come from jobs, models and clusters."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tabs and line breaks, and those that turn the direction of what follows."""


def printable(text: str) -> str:
    """The text with each control character as a dot, so that a terminal shows it and does nothing else."""
    return CONTROL.sub("·", text)
