"""Weights that came while devices generated: table and line, as the report and the terminal show them. Pure.

Beside `reshard_table`, in the same section of the report.
"""

from collections.abc import Callable
from operator import attrgetter

from rljob_runtime.record.event_types import InFlightEvent
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.reshard_table import Row, row_of
from rljob_runtime.report.display.wording import count, percent, seconds_of

Figure = Callable[[InFlightEvent], float | None]


def in_flight_table(history: RunHistory) -> list[Row]:
    """Figures over all versions that came in flight, as `reshard_table`."""
    told = [history.in_flight[step] for step in sorted(history.in_flight)]

    def row(label: str, unit: str, figure: Figure, note: str) -> Row | None:
        return row_of([figure(event) for event in told], label, unit, note)

    rows = [
        row("on the way", "seconds", _field("received_seconds"), "first byte to the verified last"),
        row("behind generation", "seconds", _field("hidden_seconds"), "of it, the device generated"),
        row("hidden", "share", hidden, "share of it behind generation"),
        row("generation stands still", "seconds", _field("switch_seconds"), "copy between two tokens"),
        row("checks", "seconds", _field("check_seconds"), "between two batches"),
        row("distance of log-probs", "nats", _field("probe_gap"), "between update and rollout engine"),
        row("checks passed", "count", _field("checks"), "names, sums and log-probs"),
        row("tokens meanwhile", "count", _field("tokens"), "drawn by all devices while weights came"),
        row("received", "bytes", _field("received_bytes"), "by all devices together"),
        row("received in a second", "bytes", _rate, "all devices together"),
        row("between two tokens", "count", _field("generating"), "devices that switched within a batch"),
    ]  # fmt: skip
    return [found for found in rows if found is not None]


def in_flight_text(told: InFlightEvent) -> str:
    """`version 3 → 4 · 0.42 s, 97 % behind generation · 1 240 tokens meanwhile · copy 0.004 s`."""
    share = hidden(told)
    versions = f"version {told.step}"
    if told.before is not None:
        versions = f"version {told.before} → {told.step}"
    way = seconds_of(told.received_seconds)
    way += f", {percent(share, 0)} behind generation" if share is not None else ""
    parts = [versions, way]
    parts += [f"{count(told.tokens)} tokens meanwhile"] if told.tokens is not None else []
    return " · ".join([*parts, f"copy {seconds_of(told.switch_seconds)}"])


def hidden(told: InFlightEvent) -> float | None:
    """Share of the way in which the slowest device generated."""
    received, behind = told.received_seconds, told.hidden_seconds
    return min(1.0, behind / received) if received > 0 and behind is not None else None


def _field(name: str) -> Figure:
    return attrgetter(name)


def _rate(told: InFlightEvent) -> float | None:
    moved, seconds = told.received_bytes, told.received_seconds
    return moved / seconds if moved and seconds > 0 else None
