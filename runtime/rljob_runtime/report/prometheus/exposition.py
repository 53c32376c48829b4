"""Values of metrics and the text that Prometheus reads. Called by `run_figures`. Knows nothing of runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric without its values. labels: names that its samples have."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Samples:
    """Values by family and labels; of histograms, how often each value came."""

    _values: dict[Family, dict[Labels, float]] = field(default_factory=dict)
    _counts: dict[Family, dict[int, int]] = field(default_factory=dict)

    def set(self, family: Family, value: float | None, **labels: str) -> None:
        """It is so now; None: it is not known, and not told."""
        values = self._values.setdefault(family, {})
        if value is None:
            values.pop(_place(family, labels), None)
        else:
            values[_place(family, labels)] = value

    def add(self, family: Family, value: float, **labels: str) -> None:
        """So much more. With 0 the counter is there from now on: Prometheus sees no first rise."""
        values = self._values.setdefault(family, {})
        place = _place(family, labels)
        values[place] = values.get(place, 0.0) + value

    def clear(self, family: Family) -> None:
        """Nothing is known of it any more."""
        self._values.pop(family, None)

    def count(self, family: Family, value: int, times: int) -> None:
        """A histogram's value came so often."""
        counts = self._counts.setdefault(family, {})
        counts[value] = counts.get(value, 0) + times

    def text(self, bounds: tuple[int, ...]) -> str:
        """The exposition format. bounds: of the histograms' buckets."""
        lines = [line for family, values in self._values.items() for line in _lines(family, values)]
        for family, counts in self._counts.items():
            lines += _histogram(family, counts, bounds)
        return "\n".join([*lines, ""])


def _place(family: Family, labels: Mapping[str, str]) -> Labels:
    assert tuple(labels) == family.labels, f"{family.name} has the labels {family.labels}"
    return tuple(labels.items())


def _lines(family: Family, values: Mapping[Labels, float]) -> Iterator[str]:
    if values:
        yield from _heading(family)
    for labels, value in values.items():
        yield _sample(family.name, labels, value)


def _histogram(family: Family, counts: Mapping[int, int], bounds: tuple[int, ...]) -> Iterator[str]:
    yield from _heading(family)
    total = sum(counts.values())
    for bound in bounds:
        below = sum(times for value, times in counts.items() if value <= bound)
        yield _sample(f"{family.name}_bucket", (("le", str(bound)),), below)
    yield _sample(f"{family.name}_bucket", (("le", "+Inf"),), total)
    yield _sample(f"{family.name}_sum", (), sum(value * n for value, n in counts.items()))
    yield _sample(f"{family.name}_count", (), total)


def _heading(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} {family.kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{text.translate(ESCAPED)}"' for label, text in labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"
