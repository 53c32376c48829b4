"""Charts of the transfer dock over the steps: who waited for whom, how fast rows and bytes went from
state to state, how full the warehouses were, how old the rows. Pure."""

from collections.abc import Callable, Iterator

from rljob_runtime.report.display.curves import Curve
from rljob_runtime.report.display.figures import (
    SERIES,
    Chart,
    Figure,
    Values,
    axis_layout,
    figure_of,
    line_traces,
    shown_steps,
)
from rljob_runtime.report.display.history import RunHistory

MAX_LINES = 16
DASHES = ("solid", "dot", "dash", "dashdot")
"""For lines that have a colour again."""
Point = tuple[str, float]
"""(line, value)"""


def dock_charts(history: RunHistory) -> list[Chart]:
    """All charts of the dock that the run has data for, in reading order."""
    waits = "Seconds that workers of a state waited in a step for rows of another, added up."
    moved = "Bytes of columns that a state read of another's, over the step's seconds."
    held = "Bytes in each warehouse at its fullest moment of a step."
    made = [
        _chart(history, "dock-waits", "Who waits for whom", waits, _waits, " s"),
        _chart(history, "dock-edges", "Bytes a second from state to state", moved, _rates, "B"),
        _chart(history, "dock-held", "Held", held, _held, "B", None),
        staleness_chart(history),
    ]
    return [chart for chart in made if chart is not None]


def staleness_chart(history: RunHistory) -> Chart | None:
    """Rows that the run trained on, by the number of weight versions that they were behind."""
    ages = history.step_totals().staleness
    if not ages:
        return None
    shown = range(max(ages) + 1)
    bar = {
        "type": "bar",
        "x": [*shown],
        "y": [ages[age] for age in shown],
        "width": 0.6,
        "marker": {"color": "@generate"},
        "hovertemplate": "%{y:,} rows",
    }
    axis = {"range": [-0.7, max(ages) + 0.7], "dtick": max(1, len(shown) // 8)}
    figure = {"data": [bar], "layout": {"showlegend": False, "xaxis": axis, "yaxis": {}}}
    note = "Rows of the run by how many weight versions they were behind the weights they trained."
    title = "Staleness of rows"
    return Chart(key="dock-staleness", title=title, note=note, figure=figure, wide=True)


def _waits(history: RunHistory, step: int) -> Iterator[Point]:
    for state, values in history.docks[step].states.items():
        for awaited, seconds in values.waits.items():
            yield f"{state} for {awaited}", seconds


def _rates(history: RunHistory, step: int) -> Iterator[Point]:
    for edge in history.docks[step].edges:
        yield f"{edge.from_} → {edge.to}", edge.bytes / history.steps[step].seconds


def _held(history: RunHistory, step: int) -> Iterator[Point]:
    for warehouse in history.docks[step].warehouses:
        yield f"warehouse {warehouse.index}", warehouse.peak_bytes


def _chart(
    history: RunHistory,
    key: str,
    title: str,
    note: str,
    points: Callable[[RunHistory, int], Iterator[Point]],
    unit: str,
    absent: float | None = 0.0,
) -> Chart | None:
    """A line for each name that `points` finds in the steps; None where it finds none. absent: the value
    of a name in a step that does not tell it."""
    steps = [step for step in shown_steps(history) if step in history.docks]
    found = [dict(points(history, step)) for step in steps]
    names = list(dict.fromkeys(name for values in found for name in values))[:MAX_LINES]
    if not names:
        return None
    traces: list[Figure] = []
    drawn: list[tuple[Curve, Values]] = []
    for i, name in enumerate(names):
        curve = Curve(
            metric=name,
            name=name,
            colour=SERIES[i % len(SERIES)],
            text=".3~s" if unit == "B" else ".3~g",
        )
        values: Values = [values.get(name, absent) for values in found]
        lines = line_traces(steps, values, curve)
        for line in lines:
            line["line"] = {**line["line"], "dash": DASHES[i // len(SERIES)]}
        traces += lines
        drawn.append((curve, values))
    axis = axis_layout(drawn) | {"ticksuffix": unit, "rangemode": "tozero"}
    figure = figure_of(history, traces, yaxis=axis)
    return Chart(key=key, title=title, note=note, figure=figure, wide=True)
