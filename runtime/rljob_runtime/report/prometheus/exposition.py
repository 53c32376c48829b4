"""Values of metrics, which prometheus-client writes as Prometheus reads them. Called by `run_figures`. Knows
nothing of runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
OF_KIND = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric without its values. labels: names that its samples have."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Samples(Collector):
    """Values by family and labels; of histograms, how often each value came. bounds: of their buckets."""

    bounds: tuple[int, ...]
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

    def collect(self) -> Iterator[Metric]:
        """As prometheus-client asks for them."""
        for family, values in self._values.items():
            metric = OF_KIND[family.kind](family.name, family.meaning, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
            if values:
                yield metric
        for family, counts in self._counts.items():
            buckets = [
                (str(bound), sum(times for value, times in counts.items() if value <= bound))
                for bound in self.bounds
            ]
            histogram = HistogramMetricFamily(family.name, family.meaning)
            histogram.add_metric(
                [],
                [*buckets, ("+Inf", sum(counts.values()))],
                sum(value * times for value, times in counts.items()),
            )
            yield histogram

    def text(self) -> str:
        """The exposition format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()


def _place(family: Family, labels: Mapping[str, str]) -> Labels:
    assert tuple(labels) == family.labels, f"{family.name} has the labels {family.labels}"
    return tuple(labels.values())
