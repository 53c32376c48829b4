"""docs/combinations.md, from what `combinations.py` found."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

HEAD = """# What goes with what

Algorithm, flow and placement, generation, training and the turns of a sample are chosen apart. This page is \
written from a run of `python -m benchmarks.run.combinations`, which asks `rljob validate` about every \
combination of the parts below, and runs jobs of three steps on emulated devices, chosen so that every two \
parts meet in one of them, most new pairs first. Pairs for [DPO](algorithms.md#dpos-pairs) are not \
generated, so they have none of these choices; what else is refused, and why, stands in \
[algorithms](algorithms.md#modes-and-placements) and [tools](tools.md#what-it-does-not-go-with)."""


def combinations_page(document: Mapping[str, Any]) -> str:
    """Axes, refusals with their reasons, and the jobs that ran."""
    axes: Mapping[str, list[str]] = document["axes"]
    refused: Mapping[str, int] = document["refused"]
    ran: list[Mapping[str, Any]] = document["ran"]
    whole, count = document["combinations"], sum(refused.values())
    done = [one for one in ran if not one["problem"]]
    seen = {pair for one in done for pair in _pairs(one["parts"])}
    pairs = sum(len(one) * len(other) for one, other in combinations(axes.values(), 2))
    left_out = f" (`--runs {len(ran)}`)" if len(ran) < document["chosen"] else ""
    parts = [
        HEAD,
        _table(["", "parts"], [[axis, "; ".join(names)] for axis, names in axes.items()]),
        f"## Refused\n\n{count} of {whole} combinations ({count / whole:.1%})"
        + (", before anything starts:" if refused else "."),
        *(
            [_table(["combinations", "reason"], [[str(n), why] for why, n in refused.items()])]
            if refused
            else []
        ),
        f"## Run\n\n{len(done)} of the {document['chosen']} jobs that have every pair ran three steps, and "
        f"{len(seen)} of {pairs} pairs of parts met in them{left_out}:",
        _table(
            [*axes, "seconds", ""],
            [[*one["parts"], f"{one['seconds']:.0f}", one["problem"] or "done"] for one in ran],
        ),
        "Machine: "
        + ", ".join(f"{name} {value}" for name, value in document["machine"].items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _pairs(parts: list[str]) -> list[tuple[str, str]]:
    return list(combinations(parts, 2))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
