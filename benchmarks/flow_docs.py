"""What docs/benchmarks.md shows of `flow.py` beside seconds: who had work for how much of the time."""

from collections.abc import Mapping
from typing import Any


def busy_parts(document: Mapping[str, Any]) -> list[str]:
    """A row for each worker and phase, a column a mode; nothing where no shares were measured."""
    busy: Mapping[str, Mapping[str, float]] = document.get("busy", {})
    if not busy:
        return []
    modes = list(next(iter(busy.values())))
    rows = [["share of the time with work", *modes], ["---"] * (1 + len(modes))]
    rows += [[row, *(f"{shares[mode]:.0%}" for mode in modes)] for row, shares in busy.items()]
    return ["\n".join(f"| {' | '.join(row)} |" for row in rows)]
