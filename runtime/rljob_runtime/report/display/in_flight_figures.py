"""Weights that devices received while they generated: the report's table and the terminal's line. Pure.

Shown in the same section of the report as `reshard_table`.
"""

from collections.abc import Callable
from operator import attrgetter

from rljob_runtime.record.event_types import InFlightEvent
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.reshard_table import Row, row_of
from rljob_runtime.report.display.wording import count, percent, seconds_of

Figure = Callable[[InFlightEvent], float | None]


def in_flight_table(history: RunHistory) -> list[Row]:
    """Return the figures over all versions that were received in flight, in the form of `reshard_table`."""
    events = [history.in_flight[step] for step in sorted(history.in_flight)]

    def row(label: str, unit: str, figure: Figure, note: str) -> Row | None:
        return row_of([figure(event) for event in events], label, unit, note)

    rows = [
        row("on the way", "seconds", _field("received_seconds"), "first byte to the verified last"),
        row("behind generation", "seconds", _field("hidden_seconds"), "of it, the device generated"),
        row("hidden", "share", hidden_share, "share of it behind generation"),
        row("generation stands still", "seconds", _field("switch_seconds"), "copy between two tokens"),
        row("checks", "seconds", _field("check_seconds"), "between two batches"),
        row("distance of log-probs", "nats", _field("probe_gap"), "between update and rollout engine"),
        row("checks passed", "count", _field("checks"), "names, sums and log-probs"),
        row("tokens meanwhile", "count", _field("tokens"), "drawn by all devices while weights came"),
        row("received", "bytes", _field("received_bytes"), "by all devices together"),
        row("received in a second", "bytes", _rate, "all devices together"),
        row("between two tokens", "count", _field("generating"), "devices that switched within a batch"),
    ]  # fmt: skip
    return [shown_row for shown_row in rows if shown_row is not None]


def in_flight_text(event: InFlightEvent) -> str:
    """Format an event: `version 3 → 4 · 0.42 s, 97 % behind generation · 1 240 tokens meanwhile · copy 0.004
    s`."""
    share = hidden_share(event)
    versions = f"version {event.step}"
    if event.before is not None:
        versions = f"version {event.before} → {event.step}"
    transfer = seconds_of(event.received_seconds)
    transfer += f", {percent(share, 0)} behind generation" if share is not None else ""
    parts = [versions, transfer]
    parts += [f"{count(event.tokens)} tokens meanwhile"] if event.tokens is not None else []
    return " · ".join([*parts, f"copy {seconds_of(event.switch_seconds)}"])


def hidden_share(event: InFlightEvent) -> float | None:
    """Return the share of the transfer in which the slowest device generated."""
    received, behind = event.received_seconds, event.hidden_seconds
    return min(1.0, behind / received) if received > 0 and behind is not None else None


def _field(name: str) -> Figure:
    return attrgetter(name)


def _rate(event: InFlightEvent) -> float | None:
    moved, seconds = event.received_bytes, event.received_seconds
    return moved / seconds if moved and seconds > 0 else None
