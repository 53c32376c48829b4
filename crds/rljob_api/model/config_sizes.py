"""Sizes in a Hugging Face config.json, checked as they are read.

Called by `architecture` and `vision`; the runtime's own reader has the same limits.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api.spec.messages import show

MOST_SIZE = 2**31 - 1
MOST = dict.fromkeys(("num_hidden_layers", "depth"), 1024) | dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts"), 4096
)
"""Of what is counted one by one, by its key in config.json: no model has more, a spoiled file may."""


def most_of(key: str) -> int:
    """The largest value that a size of a config.json may have."""
    return MOST.get(key, MOST_SIZE)


def size_in(
    config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1
) -> int:
    """A whole number. Raises ValueError for anything else, and for one that no model has."""
    value, most = config.get(key), most_of(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        found = "is missing" if value is None else f"is {show(value)}"
        raise ValueError(f"{key} {found}; must be a whole number from {least} to {most}")
    return value
