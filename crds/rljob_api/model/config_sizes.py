"""Read sizes from a Hugging Face config.json and check them.

Called by `architecture` and `vision`; the runtime's own reader has the same limits.
"""

from collections.abc import Mapping
from typing import Any

from rljob_api.spec.messages import show

MOST_SIZE = 2**31 - 1
MOST = dict.fromkeys(("num_hidden_layers", "depth"), 1024) | dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts"), 4096
)
"""Upper bounds of counts, by key in config.json. No real model exceeds them; a corrupt file may."""


def most_of(key: str) -> int:
    """Return the largest value that a size of a config.json may have."""
    return MOST.get(key, MOST_SIZE)


def size_in(
    config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1
) -> int:
    """Return a whole number of the configuration. Raises ValueError for anything else, or a number out of
    range."""
    value, most = config.get(key), most_of(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        problem = "is missing" if value is None else f"is {show(value)}"
        raise ValueError(f"{key} {problem}; must be a whole number from {least} to {most}")
    return value
