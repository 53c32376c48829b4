"""Values of metrics, which prometheus-client writes in the exposition format. Called by `run_figures`; it
does not depend on runs."""

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
class MetricFamily:
    """The name and type of a metric, without its values. labels: label names of its samples."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class MetricValues(Collector):
    """Values by family and labels.

    For histograms, the count of each value. bounds: of their buckets.
    """

    bounds: tuple[int, ...]
    _values: dict[MetricFamily, dict[Labels, float]] = field(default_factory=dict)
    _counts: dict[MetricFamily, dict[int, int]] = field(default_factory=dict)

    def set(self, family: MetricFamily, value: float | None, **labels: str) -> None:
        """Set the value of a gauge; None removes it."""
        values = self._values.setdefault(family, {})
        if value is None:
            values.pop(_labels_key(family, labels), None)
        else:
            values[_labels_key(family, labels)] = value

    def add(self, family: MetricFamily, value: float, **labels: str) -> None:
        """Increase a counter. With 0 it is created, since Prometheus does not see a counter's first rise."""
        values = self._values.setdefault(family, {})
        labels_key = _labels_key(family, labels)
        values[labels_key] = values.get(labels_key, 0.0) + value

    def clear(self, family: MetricFamily) -> None:
        """Remove all values of a family."""
        self._values.pop(family, None)

    def count(self, family: MetricFamily, value: int, times: int) -> None:
        """Count a value of a histogram this many times."""
        counts = self._counts.setdefault(family, {})
        counts[value] = counts.get(value, 0) + times

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics to prometheus-client."""
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
        """Return the metrics in the exposition format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()


def _labels_key(family: MetricFamily, labels: Mapping[str, str]) -> Labels:
    assert tuple(labels) == family.labels, f"{family.name} has the labels {family.labels}"
    return tuple(labels.values())
