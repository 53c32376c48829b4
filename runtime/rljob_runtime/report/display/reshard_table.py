"""A run's resharding in numbers: the report's table and the terminal's line. Pure."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from rljob_runtime.record.event_types import ReshardEvent
from rljob_runtime.report.display.history import RunHistory, is_over_bound
from rljob_runtime.report.display.reshard_figures import PHASES, standstill_share
from rljob_runtime.report.display.wording import bytes_of, percent, seconds_of

Row = dict[str, Any]


def reshard_table(history: RunHistory) -> list[Row]:
    """Return a row per figure over all reshards of the history.

    Columns: label, unit (seconds, bytes, share, nats or count), median, largest, last, and a note. Figures
    that the run does not have are left out.
    """
    if not history.reshards:
        return []
    rows = [
        _row(history, "seconds", "seconds", _field("seconds"), "of the slowest device, without checks"),
        *(
            _row(history, name, "seconds", _field(field), "of the slowest device")
            for field, (name, _) in PHASES.items()
        ),
        _row(history, "share of a step", "share", _share, "devices do nothing else"),
        _row(history, "way back, hidden", "share", _field("overlap"), "by what runs beside it"),
        _row(history, "swap to the host, hidden", "share", _swap_hidden, "behind gather and select"),
        _row(history, "received", "bytes", _field("received_bytes"), "from other devices, all together"),
        _row(history, "received in a second", "bytes", _rate, "all devices together"),
        _row(history, "redundant", "bytes", _field("kept_bytes"), "R of Eq. 3: update weights beside "
             "the rollout's, on all devices"),
        _row(history, "released to the host", "bytes", _field("released_bytes"), "by all devices"),
        _row(history, "memory of hosts", "bytes", _field("host_bytes"), "kept for the whole run"),
        _row(history, "peak of a device", "bytes", _field("peak_bytes"), "weights and buffers, the fullest"),
        _row(history, "bound of it", "bytes", _field("bound_bytes"), "larger layout and two buckets; with "
             "allgather both layouts and two buckets"),
        _row(history, "distance of log-probs", "nats", _field("probe_gap"), "between the engines"),
        _row(history, "checks passed", "count", _field("checks"), "names, sums and log-probs"),
    ]  # fmt: skip
    return [row for row in rows if row is not None]


def over_bound(history: RunHistory) -> list[int]:
    """Return the steps whose reshard exceeded its memory bound."""
    return [step for step, reshard in sorted(history.reshards.items()) if is_over_bound(reshard)]


def reshard_text(history: RunHistory, step: int) -> str:
    """Format a reshard: `0.21 s · 6.0 % of the step · 61 MiB moved · peak 91 MiB of 96 MiB · back 94 %
    hidden`."""
    reshard = history.reshards[step]
    share, hidden = (
        standstill_share(reshard, history.seconds(step)),
        reshard.overlap,
    )
    parts = [seconds_of(reshard.seconds)]
    parts += [f"{percent(share)} of the step"] if share is not None else []
    if reshard.received_bytes is not None:
        parts.append(f"{bytes_of(reshard.received_bytes)} moved")
    parts.append(f"peak {bytes_of(reshard.peak_bytes)} of {bytes_of(reshard.bound_bytes)}")
    parts += [f"{bytes_of(reshard.kept_bytes)} redundant"] if reshard.kept_bytes else []
    parts += [f"back {percent(hidden, 0)} hidden"] if hidden is not None else []
    return " · ".join(parts)


Figure = Callable[[RunHistory, ReshardEvent], float | None]


def _field(name: str) -> Figure:
    return lambda _, reshard: getattr(reshard, name)


def _share(history: RunHistory, reshard: ReshardEvent) -> float | None:
    return standstill_share(reshard, history.seconds(reshard.step))


def _swap_hidden(_: RunHistory, reshard: ReshardEvent) -> float | None:
    swapped, waited = reshard.swap_seconds, reshard.swap_waited_seconds
    return max(0.0, 1 - waited / swapped) if swapped and waited is not None else None


def _rate(_: RunHistory, reshard: ReshardEvent) -> float | None:
    moved, seconds = reshard.received_bytes, reshard.seconds
    return moved / seconds if moved and seconds > 0 else None


def _row(history: RunHistory, label: str, unit: str, figure: Figure, note: str) -> Row | None:
    figures = [figure(history, history.reshards[step]) for step in sorted(history.reshards)]
    return row_of(figures, label, unit, note)


def row_of(figures: Sequence[float | None], label: str, unit: str, note: str) -> Row | None:
    """Return a figure's row of the table; None if no event has it."""
    values = [value for value in figures if value is not None]
    if not values:
        return None
    return {
        "label": label,
        "unit": unit,
        "median": statistics.median(values),
        "largest": max(values),
        "last": values[-1],
        "note": note,
    }
