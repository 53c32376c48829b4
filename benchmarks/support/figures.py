"""Figures of a benchmark that has no peer: values, each with what is wanted of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.support.results import describe_machine


@dataclass(frozen=True, slots=True)
class Figure:
    """One result, and what it may be at most (limit) or must be at least."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    least: float | None = None


class Figures:
    """What a benchmark has found, printed as it comes."""

    def __init__(self) -> None:
        self._found: list[Figure] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        limit: float | None = None,
        *,
        least: float | None = None,
    ) -> None:
        """Take down and print a figure."""
        self._found.append(Figure(name, value, unit, limit, least))
        bound = "" if limit is None else f"≤ {limit:g}"
        bound = bound if least is None else f"≥ {least:g}"
        print(f"{name:56} {value:10,.2f} {unit:9} {bound}", flush=True)

    def missed(self) -> list[Figure]:
        """Those that are not what is wanted of them."""
        return [
            found
            for found in self._found
            if (found.limit is not None and found.value > found.limit)
            or (found.least is not None and found.value < found.least)
        ]

    def write(
        self, file: Path, *, packages: Sequence[str], facts: dict[str, int], **sections: Any
    ) -> None:
        """As `write_docs.py` reads it. facts: of the run, beside those of the machine."""
        machine = describe_machine(packages) | facts
        found = [asdict(figure) for figure in self._found]
        document = {"machine": machine, "figures": found, **sections}
        file.write_text(json.dumps(document, indent=2) + "\n")
