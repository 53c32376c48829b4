"""Sums over the steps of a run. Pure.

`history` adds steps here before it drops them; tables and charts add the steps that it still has.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.record.event_types import (
    DockEvent,
    PhaseEvent,
    StateTraffic,
    StepEvent,
    Warehouse,
)

SUMMED = ("rows", "bytes_read", "bytes_written", "wait_seconds", "transfer_seconds")
"""Fields of a state of the dock that are summed."""
OPEN_SPANS = 64
"""Number of a worker's intervals that a later phase event may still overlap."""
Table = dict[str, Any]


def number(value: object) -> float:
    """Convert a metric to float; nan for null and for other types."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def row_name(phase: PhaseEvent) -> str:
    """Return the row of a phase in a timeline: its role and device."""
    role = phase.role or phase.name
    return role if phase.device is None else f"{role} {phase.device}"


@dataclass(slots=True)
class DockTotals:
    """Sums over `dock` events.

    seconds: of their steps. edges: rows and bytes by writer and reader. warehouses: replicated at the last
    step that reports it; steps_alone: number of steps that ended without a second copy. dropped: rows and
    steps by reason. data_paths: of the last step that reports them.
    """

    seconds: float = 0.0
    states: dict[str, Table] = field(default_factory=dict)
    edges: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    warehouses: dict[str, Table] = field(default_factory=dict)
    dropped: dict[str, Table] = field(default_factory=dict)
    data_paths: Table = field(default_factory=dict)

    def add(self, event: DockEvent, *, seconds: float) -> None:
        """Add an event. seconds: of the event's step, 0 while it is not done."""
        self.seconds += seconds
        self.data_paths = event.data_paths or self.data_paths
        for name, values in event.states.items():
            self._add_state(name, values)
        for edge in event.edges:
            sums = self.edges.setdefault((edge.from_, edge.to), [0, 0])
            sums[0] += edge.rows
            sums[1] += edge.bytes
        for warehouse in event.warehouses:
            self._add_warehouse(warehouse)
        for reason, rows in (event.dropped or {}).items():
            entry = self.dropped.setdefault(reason, {"reason": reason, "rows": 0, "steps": []})
            entry["rows"] += rows
            entry["steps"].append(event.step)

    def _add_state(self, name: str, values: StateTraffic) -> None:
        sums = self.states.setdefault(name, {**dict.fromkeys(SUMMED, 0.0), "waits": {}})
        for key in SUMMED:
            sums[key] += getattr(values, key)
        for awaited, waited in values.waits.items():
            sums["waits"][awaited] = sums["waits"].get(awaited, 0.0) + waited

    def _add_warehouse(self, warehouse: Warehouse) -> None:
        totals = self.warehouses.setdefault(str(warehouse.index), {"steps_alone": 0})
        for key in ("peak_bytes", "capacity_bytes", "times_alone"):
            totals[key] = max(totals.get(key, 0.0), float(getattr(warehouse, key) or 0))
        if warehouse.replicated is not None:
            totals["replicated"] = warehouse.replicated
            totals["steps_alone"] += not warehouse.replicated


@dataclass(slots=True)
class WorkerTime:
    """The busy time of one worker.

    worked: seconds by the phase's name, without its waits. covered: seconds up to `reached` in which at least
    one phase ran; spans: the later intervals, disjoint and in order.
    """

    worked: dict[str, float] = field(default_factory=dict)
    covered: float = 0.0
    reached: float = -math.inf
    spans: list[tuple[float, float]] = field(default_factory=list)

    def seconds(self) -> float:
        """Return the seconds in which at least one phase ran."""
        return self.covered + sum(end - start for start, end in self.spans)

    def close_spans(self) -> None:
        """Keep the last OPEN_SPANS intervals, and only the sum of the earlier ones."""
        closed = self.spans[:-OPEN_SPANS]
        if closed:
            self.covered += sum(end - start for start, end in closed)
            self.reached = closed[-1][1]
            del self.spans[:-OPEN_SPANS]


@dataclass(slots=True)
class BusyTotals:
    """The busy time of each worker, by its row in a timeline."""

    workers: dict[str, WorkerTime] = field(default_factory=dict)

    def add(self, phases: Iterable[PhaseEvent], *, since: float, until: float) -> None:
        """Add the part of the phases between two times (unix seconds)."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for phase in phases:
            if phase.start < until and phase.end > since:
                row, name = row_name(phase), phase.name
                time = self.workers.setdefault(row, WorkerTime())
                time.worked[name] = time.worked.get(name, 0.0) + _busy_seconds(phase, since, until)
                start, end = max(phase.start, since, time.reached), min(phase.end, until)
                spans.setdefault(row, []).append((start, end))
        for row, row_spans in spans.items():
            self.workers[row].spans = _merge_spans([*self.workers[row].spans, *row_spans])


@dataclass(slots=True)
class StepTotals:
    """Sums over `step` events.

    staleness: rows by the number of versions that they were behind. speeds: sum of the finite
    tokens_per_second, of num_speeds steps.
    """

    staleness: Counter[int] = field(default_factory=Counter)
    speeds: float = 0.0
    num_speeds: int = 0

    def add(self, event: StepEvent) -> None:
        """Add a `step` event."""
        for behind, rows in event.staleness.items():
            self.staleness[behind] += rows
        speed = number(event.metrics.get("tokens_per_second"))
        if math.isfinite(speed):
            self.speeds += speed
            self.num_speeds += 1


@dataclass(slots=True)
class RunTotals:
    """Sums over all steps up to `step`. busy: since the run's last start."""

    step: int = -1
    steps: StepTotals = field(default_factory=StepTotals)
    docks: DockTotals = field(default_factory=DockTotals)
    busy: BusyTotals = field(default_factory=BusyTotals)


def _busy_seconds(phase: PhaseEvent, since: float, until: float) -> float:
    """Seconds of a phase between the times, without a proportional share of its waits."""
    duration = phase.end - phase.start
    if duration <= 0:
        return 0.0
    waited = phase.waited_seconds / duration
    within = min(phase.end, until) - max(phase.start, since)
    return within * (1 - min(1.0, waited))


def _merge_spans(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge the spans into disjoint ones, in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        elif end > start:
            merged.append((start, end))
    return merged
