"""Make texts from jobs, models and clusters safe for a terminal."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tabs and line breaks, and those that change the direction of text."""


def printable(text: str) -> str:
    """Return the text with each control character as a dot, so that a terminal only displays it."""
    return CONTROL.sub("·", text)
