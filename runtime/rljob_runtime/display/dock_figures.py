"""Charts of the transfer dock: who waited, what was moved, how full the warehouses were. Pure."""

from collections.abc import Callable, Iterator

from rljob_runtime.display.curves import Curve
from rljob_runtime.display.figures import (
    SERIES,
    Chart,
    Figure,
    Values,
    axis_layout,
    figure_of,
    line_traces,
    shown_steps,
)
from rljob_runtime.display.history import RunHistory, number
from rljob_runtime.events import Event

COLOURS = {
    "feed": "@muted",
    "generate": "@generate",
    "reference": "@reference",
    "reward": "@reward-phase",
    "update": "@update",
}
MAX_LINES = 16
Point = tuple[str, float]
"""(line, value)"""


def dock_charts(history: RunHistory) -> list[Chart]:
    """All charts of the dock that the run has data for, in reading order."""
    waits = (
        "Seconds that the workers of a state waited in a step for the states before it, added up."
    )
    moved = "Bytes of columns that the workers of a state read and wrote in a step."
    held = "Bytes in each warehouse at its fullest moment of a step."
    made = [
        _chart(history, "dock-waits", "Who waits", waits, _waits, " s"),
        _chart(history, "dock-moved", "Moved", moved, _moved, "B"),
        _chart(history, "dock-held", "Held", held, _held, "B"),
    ]
    return [chart for chart in made if chart is not None]


def _waits(event: Event) -> Iterator[Point]:
    for state, values in event.get("states", {}).items():
        yield state, number(values.get("wait_seconds", 0.0))


def _moved(event: Event) -> Iterator[Point]:
    for state, values in event.get("states", {}).items():
        read, written = values.get("bytes_read", 0), values.get("bytes_written", 0)
        yield state, number(read) + number(written)


def _held(event: Event) -> Iterator[Point]:
    for warehouse in event.get("warehouses", []):
        yield f"warehouse {warehouse['index']}", number(warehouse.get("peak_bytes", 0))


def _chart(
    history: RunHistory,
    key: str,
    title: str,
    note: str,
    points: Callable[[Event], Iterator[Point]],
    unit: str,
) -> Chart | None:
    """A line for each name that `points` finds in the steps' events; None where it finds none."""
    steps = [step for step in shown_steps(history) if step in history.docks]
    found = [dict(points(history.docks[step])) for step in steps]
    names = list(dict.fromkeys(name for values in found for name in values))[:MAX_LINES]
    if not names:
        return None
    traces: list[Figure] = []
    drawn: list[tuple[Curve, Values]] = []
    for i, name in enumerate(names):
        curve = Curve(
            metric=name,
            name=name,
            colour=COLOURS.get(name, SERIES[i % len(SERIES)]),
            text=".3~s" if unit == "B" else ".3~g",
        )
        values: Values = [values.get(name) for values in found]
        traces += line_traces(steps, values, curve)
        drawn.append((curve, values))
    axis = axis_layout(drawn) | {"ticksuffix": unit, "rangemode": "tozero"}
    return Chart(key=key, title=title, note=note, figure=figure_of(history, traces, yaxis=axis))
