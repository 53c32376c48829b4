"""Draws charts as Plotly figures in plain dicts. Pure: history in, JSON-able dicts out.

`chart_table` declares the charts. Colours are tokens such as `@reward`; the report's script replaces them by
those of the light or dark theme. Titles are part of the page, not of the figures.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from rljob_runtime.report.display.alarms import alarm_marks
from rljob_runtime.report.display.history import RunHistory, interval95
from rljob_runtime.report.display.totals import number

Figure = dict[str, Any]
Values = list[float | None]
StepValues = Mapping[int, Mapping[str, Any]]
"""Figures by name, for each step."""
SMOOTH_FROM = 30
FLAT = 1e-9
"""Largest relative difference of the values of a flat curve."""
MAX_POINTS = 2000
AXES = {"y": "yaxis", "y2": "yaxis2"}


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure over the steps.

    axis: y, or y2 on the right. text: d3 format of values. smooth: draw the moving average, with faint values
    beneath it. band: figure that is drawn as a band around the curve.
    """

    metric: str
    name: str
    colour: str
    _: KW_ONLY
    axis: str = "y"
    text: str = ".3~g"
    smooth: bool = True
    dash: str = ""
    band: str = ""


class PlotLine(NamedTuple):
    """The points of a curve. values: None where a figure was not finite."""

    curve: Curve
    steps: list[int]
    values: Values


def step_metrics(history: RunHistory) -> StepValues:
    """Return the metrics of the steps."""
    return {step: event.metrics for step, event in history.steps.items()}


@dataclass(frozen=True, slots=True)
class Chart:
    """A row of the table of charts. A chart is shown if the run has any of its curves.

    key: also the element's id. note: text beneath the title; note_end: its end. curves_of: derives the curves
    from the values, in place of `curves`. values: source of the figures. section: the document's list. unit:
    suffix of the ticks. wide: spans the full row. form: function that draws it, `lines` by default.
    """

    key: str
    title: str
    note: str
    curves: Sequence[Curve] = ()
    _: KW_ONLY
    curves_of: Callable[[StepValues], Sequence[Curve]] | None = None
    note_end: Callable[[RunHistory], str] | None = None
    values: Callable[[RunHistory], StepValues] = step_metrics
    section: str = "charts"
    unit: str = ""
    from_zero: bool = False
    wide: bool = False
    form: "Callable[[Chart, RunHistory], Figure | None] | None" = None


def draw(chart: Chart, history: RunHistory) -> Figure | None:
    """Draw the chart for the page; None if the run has no data for it."""
    figure = (chart.form or lines)(chart, history)
    if figure is None:
        return None
    note = chart.note + (chart.note_end(history) if chart.note_end else "")
    return card(chart.key, chart.title, note, figure, wide=chart.wide)


def card(key: str, title: str, note: str, figure: Figure, *, wide: bool) -> Figure:
    """Combine a figure with its texts."""
    return {"key": key, "title": title, "note": note, "figure": figure, "wide": wide}


def lines(chart: Chart, history: RunHistory) -> Figure | None:
    """Draw a line for each curve that the run has."""
    step_values = chart.values(history)
    curves = chart.curves_of(step_values) if chart.curves_of else chart.curves
    drawn = [line for curve in curves if (line := line_of(step_values, curve)).steps]
    if not drawn:
        return None
    if all(line.curve.axis == "y2" for line in drawn):
        drawn = [line._replace(curve=replace(line.curve, axis="y")) for line in drawn]
    traces: list[Figure] = []
    axes: dict[str, list[PlotLine]] = {}
    for line in drawn:
        traces += [*band_traces(step_values, line), *line_traces(line)]
        axes.setdefault(line.curve.axis, []).append(line)
    layout = {
        AXES[axis]: axis_layout(on_axis, from_zero=chart.from_zero)
        for axis, on_axis in axes.items()
    }
    if "yaxis2" in layout:
        layout["yaxis2"] |= {"overlaying": "y", "side": "right", "showgrid": False}
    if chart.unit:
        layout["yaxis"]["ticksuffix"] = chart.unit
    if chart.unit == "B":
        layout["yaxis"]["tickformat"] = ".3~s"
    figure = figure_of(history, traces, **layout)
    figure["layout"]["showlegend"] = len(curves) > 1  # the legend shows which curve the run has
    return figure


def shares(chart: Chart, history: RunHistory) -> Figure | None:
    """Draw lines of shares, and held-out accuracies with their intervals."""
    figure = lines(chart, history) or figure_of(history, [])
    traces = figure["data"] + held_out_traces(history, name="held-out prompts", colour="@accuracy")
    axis = {"tickformat": ".0%", "range": share_range(traces)}
    return figure_of(history, traces, yaxis=axis) if traces else None


def stacked_bars(chart: Chart, history: RunHistory) -> Figure | None:
    """Draw stacked bars over the steps, a segment for each curve."""
    step_values = chart.values(history)
    traces = [
        {
            "type": "bar",
            "x": [*step_values],
            "y": [values.get(curve.metric, 0.0) for values in step_values.values()],
            "name": curve.name,
            "marker": {"color": curve.colour},
            "hovertemplate": f"%{{y:{curve.text}}}{chart.unit}",
        }
        for curve in (chart.curves_of(step_values) if chart.curves_of else chart.curves)
    ]
    if not traces:
        return None
    figure = figure_of(history, traces, yaxis={"ticksuffix": chart.unit, "rangemode": "tozero"})
    figure["layout"] |= {"barmode": "stack", "bargap": 0.15 if len(step_values) < 80 else 0}
    return figure


def evenly_spaced(steps: list[int], limit: int = MAX_POINTS) -> list[int]:
    """Select at most `limit` steps, counted from the first, so that the selection is stable while a run
    continues."""
    selected = steps[:: -(-len(steps) // (limit - 1)) if len(steps) > limit else 1]
    return selected if selected[-1:] == steps[-1:] else [*selected, steps[-1]]


def shown_steps(history: RunHistory, limit: int = MAX_POINTS) -> list[int]:
    """Return the steps to show: all, or evenly spaced ones and the last."""
    return evenly_spaced(sorted(history.steps), limit)


def line_of(step_values: StepValues, curve: Curve) -> PlotLine:
    """Return the curve's points over the steps that have it."""
    steps = [
        step for step in evenly_spaced(sorted(step_values)) if curve.metric in step_values[step]
    ]
    values = [number(step_values[step][curve.metric]) for step in steps]
    return PlotLine(curve, steps, [value if value == value else None for value in values])


def band_traces(step_values: StepValues, line: PlotLine) -> list[Figure]:
    """Return the edges of the curve's band; none without a band."""
    curve, steps, values = line
    if not curve.band:
        return []
    spreads = [number(step_values[step].get(curve.band, 0.0)) for step in steps]
    pairs = [(v, s if s == s else 0.0) for v, s in zip(values, spreads, strict=True)]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    filled = {"fill": "tonexty", "fillcolor": f"{curve.colour}-band"}
    return [
        {"x": steps, "y": [None if v is None else v + s for v, s in pairs], **edge},
        {"x": steps, "y": [None if v is None else v - s for v, s in pairs], **edge, **filled},
    ]


def held_out_traces(history: RunHistory, *, name: str, colour: str) -> list[Figure]:
    """Return held-out accuracies with 95 % intervals; none without an evaluation."""
    if not history.evaluations:
        return []
    steps = sorted(history.evaluations)
    shares = [history.evaluations[step].accuracy for step in steps]
    bounds = [interval95(history.evaluations[step]) for step in steps]
    error = {
        "type": "data",
        "symmetric": False,
        "array": [high - y for (_, high), y in zip(bounds, shares, strict=True)],
        "arrayminus": [y - low for (low, _), y in zip(bounds, shares, strict=True)],
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }
    trace = {
        "x": steps,
        "y": shares,
        "name": name,
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 8},
        "error_y": error,
        "hovertemplate": "%{y:.1%}",
    }
    return [trace]


def share_range(traces: Sequence[Figure]) -> list[float]:
    """Return the range 0–1, cut to the traces and their intervals, with a margin."""
    ends = []
    for trace in traces:
        error = trace.get("error_y", {})
        for i, y in enumerate(trace["y"]):
            if y is not None:
                up = error["array"][i] if error else 0.0
                down = error["arrayminus"][i] if error else 0.0
                ends += [y - down, y + up]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return [max(-0.02, low - 0.03), min(1.02, high + 0.03)]


def axis_layout(drawn: Sequence[PlotLine], *, from_zero: bool = False) -> Figure:
    """Return the options of an axis: ticks as percent, `5.5k`, `4e-7` or plain; one tick for a flat line."""
    if drawn[0].curve.band:
        return {}
    finite = [value for line in drawn for value in line.values if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    largest = max(abs(low), abs(high))
    if drawn[0].curve.text.endswith("%"):
        ticks = ".1~%"
    else:
        ticks = ".3~s" if largest >= 1000 else ".2~e" if 0 < largest < 0.001 else ".3~g"
    layout: Figure = {"tickformat": ticks, "tickmode": "auto"}
    if from_zero and largest:
        layout["rangemode"] = "tozero"
    elif high - low <= FLAT * largest:
        middle, margin = (low + high) / 2, largest / 20 or 0.01
        layout |= {"range": [middle - margin, middle + margin], "tickmode": "linear"}
        layout |= {"tick0": middle, "dtick": 4 * margin}
    return layout


def line_traces(line: PlotLine) -> list[Figure]:
    """Return a line; from 30 points on a moving average, with faint values beneath it."""
    curve, steps, values = line
    dash = {"dash": curve.dash} if curve.dash else {}
    trace: Figure = {
        "x": steps,
        "y": values,
        "name": curve.name,
        "yaxis": curve.axis,
        "mode": "lines+markers" if len(steps) <= 12 else "lines",
        "line": {"color": curve.colour, "width": 2 if curve.axis == "y" else 1.5, **dash},
        "marker": {"size": 6},
        "hovertemplate": f"%{{y:{curve.text}}}",
    }
    if not curve.smooth or len(steps) < SMOOTH_FROM:
        return [trace]
    faint = trace | {"opacity": 0.3, "line": {"color": curve.colour, "width": 1, **dash}}
    average = trace | {"y": moving_average(values, len(values) // 25), "hoverinfo": "skip"}
    del average["hovertemplate"]
    return [faint | {"showlegend": False}, average]


def moving_average(values: Values, radius: int) -> Values:
    """Return the mean of the values within `radius` positions; None stays None."""
    sums = [0.0, *accumulate(value or 0.0 for value in values)]
    counts = [0, *accumulate(int(value is not None) for value in values)]
    averages: Values = []
    for i, value in enumerate(values):
        first, last = max(0, i - radius), min(len(values), i + radius + 1)
        mean = (sums[last] - sums[first]) / max(counts[last] - counts[first], 1)
        averages.append(None if value is None else mean)
    return averages


def figure_of(history: RunHistory, traces: list[Figure], **layout: Figure) -> Figure:
    """Build a figure over the steps, with marks for resumes and alarms."""
    resumes = [
        {
            "type": "line",
            "x0": step + 0.5,
            "x1": step + 0.5,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "@muted", "width": 1, "dash": "dot"},
        }
        for step in history.resumed_from
    ]
    visible = sum(trace.get("showlegend", True) for trace in traces)
    return {
        "data": traces,
        "layout": {
            "shapes": [*resumes, *alarm_marks(history)],
            "showlegend": visible > 1,
            "xaxis": steps_axis([*history.done, *history.evaluations]),
            "yaxis": {},
            **layout,
        },
    }


def steps_axis(steps: Collection[int]) -> Figure:
    """Return the options of the axis of these steps."""
    first, last = min(steps, default=0), max(steps, default=1)
    pad = max(0.5, (last - first) * 0.015)
    axis: Figure = {"range": [first - pad, last + pad]}
    if last - first <= 6:
        axis["dtick"] = 1
    return axis
