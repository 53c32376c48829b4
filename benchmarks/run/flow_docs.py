"""What docs/benchmarks.md shows of `flow.py` beside seconds: who had work for how much of the time."""

from collections.abc import Mapping
from typing import Any

WORK = (
    "How much of the time each had work, by the runs' own phases, from the end of the second step to that of "
    "the last, without what they waited for samples; medians. `rollout 0` is the device that generates, "
    "`update 0` the one that trains; as `device` they send and take weights. A reward that sleeps has work."
)


def busy_parts(document: Mapping[str, Any]) -> list[str]:
    """What is meant, and a row for each worker and phase; nothing where no shares were measured."""
    busy: Mapping[str, Mapping[str, float]] = document.get("busy", {})
    if not busy:
        return []
    modes = list(next(iter(busy.values())))
    rows = [["share of the time with work", *modes], ["---"] * (1 + len(modes))]
    rows += [[row, *(f"{shares[mode]:.0%}" for mode in modes)] for row, shares in busy.items()]
    return [WORK, "\n".join(f"| {' | '.join(row)} |" for row in rows)]
