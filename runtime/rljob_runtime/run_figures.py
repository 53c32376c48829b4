"""A run's figures of the dock and of resharding for Prometheus, as the text that its scrapers read.

Folded from the run's events, and from each look of the `row_watch`, which tells what is now. Counters
begin with the driver's process. Served by the `status_server`.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.events import Event

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AGE_BOUNDS = (0, 1, 2, 4, 8, 16)
ROW_KINDS = ("lacking", "ready", "leased")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric without its values. kind: gauge, counter or histogram."""

    name: str
    kind: str
    meaning: str


STEP = Family("rljob_step", "gauge", "Steps that are done.")
ROWS = Family("rljob_dock_rows", "gauge", "Rows at a state of the dock at the last look.")
PEAK = Family(
    "rljob_dock_peak_bytes", "gauge", "Bytes in a warehouse at the last step's fullest moment."
)
CAPACITY = Family("rljob_dock_capacity_bytes", "gauge", "Bytes that a warehouse may hold.")
REPLICATED = Family(
    "rljob_dock_replicated",
    "gauge",
    "1 while a warehouse's rows are in a standby too; replicas: 2.",
)
DONE = Family("rljob_dock_done_rows_total", "counter", "Rows that a state wrote or acknowledged.")
READ_ROWS = Family("rljob_dock_read_rows_total", "counter", "Rows that a state read of another's.")
READ_BYTES = Family(
    "rljob_dock_read_bytes_total", "counter", "Bytes that a state read of another's columns."
)
WAITED = Family(
    "rljob_dock_wait_seconds_total", "counter", "Time that workers of a state waited for another."
)
DROPPED = Family(
    "rljob_dock_dropped_rows_total", "counter", "Rows that were dropped and generated again."
)
ALARM = Family("rljob_alarm", "gauge", "1 while the alarm of a guard is raised (spec.guards).")
ALARMS = Family("rljob_alarms_total", "counter", "Alarms of a guard that were raised.")
ROLLBACKS = Family(
    "rljob_rollbacks_total", "counter", "Times that an alarm took the run back to a checkpoint."
)
AGES = Family(
    "rljob_dock_row_age_versions",
    "histogram",
    "Weight versions that rows were behind at the update.",
)

RESHARDS = Family("rljob_reshards_total", "counter", "Reshards; each passed its checks.")
RESHARD_SECONDS = Family(
    "rljob_reshard_seconds_total", "counter", "Time of reshards on the slowest device, by part."
)
RESHARD_CHECKS = Family(
    "rljob_reshard_checks_total", "counter", "Comparisons of names, sums and log-probs that passed."
)
MOVED = Family(
    "rljob_reshard_moved_bytes_total", "counter", "Weights that devices received of others."
)
RESHARD_PEAK = Family(
    "rljob_reshard_peak_bytes", "gauge", "Weights and buffers of the fullest device, last reshard."
)
RESHARD_BOUND = Family("rljob_reshard_bound_bytes", "gauge", "What that peak may be.")
REDUNDANT = Family(
    "rljob_reshard_redundant_bytes",
    "gauge",
    "Update weights that devices keep while they generate, all together.",
)
RELEASED = Family(
    "rljob_reshard_released_bytes", "gauge", "Update weights on the host, of all devices."
)
OVERLAP = Family(
    "rljob_reshard_overlap_ratio", "gauge", "Share of the last way back that was hidden."
)
IN_FLIGHT = Family(
    "rljob_reshard_in_flight_total", "counter", "Versions of the weights that came in flight."
)
IN_FLIGHT_SECONDS = Family(
    "rljob_reshard_in_flight_seconds_total",
    "counter",
    "Time of weights in flight on the slowest device, by part.",
)
IN_FLIGHT_TOKENS = Family(
    "rljob_reshard_in_flight_tokens_total", "counter", "Tokens that devices drew meanwhile."
)
IN_FLIGHT_BYTES = Family(
    "rljob_reshard_in_flight_bytes_total", "counter", "Weights that came in flight, to all devices."
)
IN_FLIGHT_VERSION = Family(
    "rljob_reshard_in_flight_version", "gauge", "Version of the last weights that came in flight."
)
IN_FLIGHT_PARTS = {
    "received_seconds": "receive",
    "hidden_seconds": "hidden",
    "switch_seconds": "switch",
    "check_seconds": "check",
}
RESHARD_PARTS = {
    "seconds": "all",
    "gather_seconds": "gather",
    "select_seconds": "select",
    "swap_seconds": "swap",
    "back_seconds": "back",
    "check_seconds": "check",
}
"""Label of each of the event's times."""
RESHARD_GAUGES = {
    "peak_bytes": RESHARD_PEAK,
    "bound_bytes": RESHARD_BOUND,
    "kept_bytes": REDUNDANT,
    "released_bytes": RELEASED,
    "overlap": OVERLAP,
}


@dataclass(slots=True)
class RunFigures:
    """What is known of a run. on_event and look are called by the driver's process, text by a server's
    thread."""

    _values: dict[Family, dict[Labels, float]] = field(default_factory=dict)
    _ages: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_event(self, event: Event) -> None:
        """Take up a step, its dock's event, an alarm, a reshard or weights in flight."""
        with self._lock:
            if event["kind"] == "step":
                self._set(STEP, event["step"])
                for age, rows in event.get("staleness", {}).items():
                    self._ages[int(age)] = self._ages.get(int(age), 0) + rows
            elif event["kind"] == "alarm":
                raised = event["state"] == "raised"
                self._set(ALARM, int(raised), alarm=event["alarm"])
                self._add(ALARMS, int(raised), alarm=event["alarm"])
                self._add(ROLLBACKS, int("rolled_back_to" in event), alarm=event["alarm"])
            elif event["kind"] == "dock":
                self._take_dock(event)
            elif event["kind"] == "reshard":
                self._take_reshard(event)
            elif event["kind"] == "in_flight":
                self._take_in_flight(event)

    def look(self, rows: Mapping[str, RowCounts]) -> None:
        """Rows at each state, now."""
        with self._lock:
            for state, counts in rows.items():
                for kind in ROW_KINDS:
                    self._set(ROWS, getattr(counts, kind), state=state, rows=kind)

    def text(self) -> str:
        """The exposition format."""
        with self._lock:
            lines = [
                line for family, values in self._values.items() for line in _lines(family, values)
            ]
            return "\n".join([*lines, *self._age_lines(), ""])

    def _take_dock(self, event: Event) -> None:
        for warehouse in event.get("warehouses", []):
            index = str(warehouse["index"])
            self._set(PEAK, warehouse["peak_bytes"], warehouse=index)
            self._set(CAPACITY, warehouse["capacity_bytes"], warehouse=index)
            if "replicated" in warehouse:
                self._set(REPLICATED, int(warehouse["replicated"]), warehouse=index)
        for state, moved in event.get("states", {}).items():
            self._add(DONE, moved["rows"], state=state)
            for awaited, seconds in moved["waits"].items():
                self._add(WAITED, seconds, state=state, awaited=awaited)
        for edge in event.get("edges", []):
            ends = {"writer": edge["from"], "reader": edge["to"]}
            self._add(READ_ROWS, edge["rows"], **ends)
            self._add(READ_BYTES, edge["bytes"], **ends)
        for reason, rows in event.get("dropped", {}).items():
            self._add(DROPPED, rows, reason=reason)

    def _take_reshard(self, event: Event) -> None:
        """Fields that are missing or null tell nothing."""
        self._add(RESHARDS, 1)
        self._add_parts(RESHARD_SECONDS, event, RESHARD_PARTS)
        self._add_totals(event, {"received_bytes": MOVED, "checks": RESHARD_CHECKS})
        for name, gauge in RESHARD_GAUGES.items():
            if (value := event.get(name)) is not None:
                self._set(gauge, value)

    def _take_in_flight(self, event: Event) -> None:
        self._add(IN_FLIGHT, 1)
        self._set(IN_FLIGHT_VERSION, event["step"])
        self._add_parts(IN_FLIGHT_SECONDS, event, IN_FLIGHT_PARTS)
        totals = {"tokens": IN_FLIGHT_TOKENS, "received_bytes": IN_FLIGHT_BYTES}
        self._add_totals(event, {**totals, "checks": RESHARD_CHECKS})

    def _add_parts(self, family: Family, event: Event, parts: Mapping[str, str]) -> None:
        for name, part in parts.items():
            if (seconds := event.get(name)) is not None:
                self._add(family, seconds, part=part)

    def _add_totals(self, event: Event, families: Mapping[str, Family]) -> None:
        for name, family in families.items():
            if (number := event.get(name)) is not None:
                self._add(family, number)

    def _set(self, family: Family, value: float, **labels: str) -> None:
        self._values.setdefault(family, {})[tuple(labels.items())] = value

    def _add(self, family: Family, value: float, **labels: str) -> None:
        values = self._values.setdefault(family, {})
        place = tuple(labels.items())
        values[place] = values.get(place, 0.0) + value

    def _age_lines(self) -> Iterator[str]:
        if not self._ages:
            return
        yield from _heading(AGES)
        for bound in AGE_BOUNDS:
            rows = sum(count for age, count in self._ages.items() if age <= bound)
            yield _sample(f"{AGES.name}_bucket", (("le", str(bound)),), rows)
        rows = sum(self._ages.values())
        yield _sample(f"{AGES.name}_bucket", (("le", "+Inf"),), rows)
        yield _sample(f"{AGES.name}_sum", (), sum(age * n for age, n in self._ages.items()))
        yield _sample(f"{AGES.name}_count", (), rows)


def _lines(family: Family, values: Mapping[Labels, float]) -> Iterator[str]:
    yield from _heading(family)
    for labels, value in values.items():
        yield _sample(family.name, labels, value)


def _heading(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.meaning}"
    yield f"# TYPE {family.name} {family.kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    """Label values are states' and reasons' names: nothing in them needs to be escaped."""
    inside = ",".join(f'{label}="{text}"' for label, text in labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"
