"""The transfer dock's data path: rows read in the warehouse's memory beside rows sent over TCP.

One warehouse, a process of its own, and one client for each path; they take turns on the same rows.
`python -m rljob_runtime.dock.probe serve` and `read` do the same between two pods.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.support.results import Result, report, summarize
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.probe import (
    CAPACITY_BYTES,
    CLAIMED_ROWS,
    GRAPH,
    ROW_BYTES,
    Turn,
    measure_claims,
    measure_rows,
)

QUICK_ROW_BYTES = (1_000, 1_000_000)
CLAIM_ROW_BYTES = 4_000
PEER = "TCP"
FIGURES: dict[str, Callable[[Turn], float]] = {
    "read into own arrays": lambda turn: turn.read_seconds,
    "looked at in place": lambda turn: turn.view_seconds,
    "written, then read": lambda turn: turn.put_seconds + turn.read_seconds,
}
TARGETS = {"read into own arrays": 1.5, "looked at in place": 3.0, "written, then read": 1.0}
"""For rows that are large enough not to travel in the answer."""


def compare(sizes: tuple[int, ...], repetitions: int) -> list[Result]:
    """Rates of both paths for each size of row, then the times of claims."""
    results: list[Result] = []
    with LocalDock(GRAPH.states, capacity=CAPACITY_BYTES, shared_memory="auto") as dock:
        sides = {
            "shared memory": dock.client("use", "shared", shared_memory="required"),
            PEER: dock.client("use", "tcp", shared_memory="none"),
        }
        for size in sizes:
            results += _rows(sides, size, repetitions)
        results += _claims(sides, repetitions)
    return results


def _rows(sides: dict[str, DockClient], size: int, repetitions: int) -> list[Result]:
    turns: dict[str, list[Turn]] = {side: [] for side in sides}
    for turn in range(repetitions + 1):
        for side, client in sides.items():
            taken = measure_rows(client, f"{side}/{size}/{turn}", size)
            if turn:  # the first is the warm-up
                turns[side].append(taken)
    rates = {
        name: {side: [t.num_bytes / seconds(t) / 1e6 for t in turns[side]] for side in sides}
        for name, seconds in FIGURES.items()
    }
    return [
        summarize(
            f"rows of {_size(size)}: {name}",
            ours=rate["shared memory"],
            peers={PEER: rate[PEER]},
            unit="MB/s",
            better="higher",
            target=TARGETS[name] if size >= 100_000 else 1.0,
        )
        for name, rate in rates.items()
    ]


def _claims(sides: dict[str, DockClient], repetitions: int) -> list[Result]:
    claims: dict[str, list[float]] = {side: [] for side in sides}
    both: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(repetitions):
        for side, client in sides.items():
            alone, together = measure_claims(client, f"{side}/claims/{turn}", CLAIM_ROW_BYTES)
            claims[side].append(1e6 * median(alone))
            both[side].append(1e6 * median(together))
    return [
        summarize(
            name,
            ours=values["shared memory"],
            peers={PEER: values[PEER]},
            unit="µs",
            better="lower",
            target=1.0,
        )
        for name, values in (
            (f"claim of {CLAIMED_ROWS} rows", claims),
            (f"claim and read of {CLAIMED_ROWS} rows of {_size(CLAIM_ROW_BYTES)}", both),
        )
    ]


def _size(num_bytes: int) -> str:
    for unit, scale in (("MB", 10**6), ("KB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes // scale} {unit}"
    return f"{num_bytes} B"


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sizes, three repetitions")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    sizes, repetitions = (QUICK_ROW_BYTES, 3) if options.quick else (ROW_BYTES, 7)
    report(compare(sizes, repetitions), packages=["rljob", "numpy", "msgspec"], file=options.json)


if __name__ == "__main__":
    main()
