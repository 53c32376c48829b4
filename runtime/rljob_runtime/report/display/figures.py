"""Draws charts as Plotly figures in plain dicts. Pure: history in, JSON-able dicts out.

`chart_table` declares what each chart shows. Colours are tokens such as `@reward`; the report's script
replaces them by those of the light or dark theme. Titles stand in the page, not in the figures.
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
Told = Mapping[int, Mapping[str, Any]]
"""Figures by name, of each step."""
SMOOTH_FROM = 30
FLAT = 1e-9
"""Of a curve whose values differ by no more than this share of them."""
MAX_POINTS = 2000
AXES = {"y": "yaxis", "y2": "yaxis2"}


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure over the steps. axis: y, or y2 on the right. text: d3 format of values. smooth: draw the
    moving average, with the values faint beneath it. band: figure that is drawn as a band around it."""

    metric: str
    name: str
    colour: str
    _: KW_ONLY
    axis: str = "y"
    text: str = ".3~g"
    smooth: bool = True
    dash: str = ""
    band: str = ""


class Line(NamedTuple):
    """A curve's points. values: None where a figure was not finite."""

    curve: Curve
    steps: list[int]
    values: Values


def step_metrics(history: RunHistory) -> Told:
    """Metrics of the steps."""
    return {step: event.metrics for step, event in history.steps.items()}


@dataclass(frozen=True, slots=True)
class Chart:
    """A row of the table: what a chart says and draws. It is shown where the run tells any of its curves.

    key: also the element's id. note: beneath the title; more: its end. each: in place of curves, those that
    follow from what is told. told: where figures come from. section: the document's list. unit: behind the
    ticks. wide: over the whole row. form: how it is drawn, `lines` by default.
    """

    key: str
    title: str
    note: str
    curves: Sequence[Curve] = ()
    _: KW_ONLY
    each: Callable[[Told], Sequence[Curve]] | None = None
    more: Callable[[RunHistory], str] | None = None
    told: Callable[[RunHistory], Told] = step_metrics
    section: str = "charts"
    unit: str = ""
    from_zero: bool = False
    wide: bool = False
    form: "Callable[[Chart, RunHistory], Figure | None] | None" = None


def draw(chart: Chart, history: RunHistory) -> Figure | None:
    """The chart as the page takes it; None where the run has nothing for it."""
    figure = (chart.form or lines)(chart, history)
    if figure is None:
        return None
    note = chart.note + (chart.more(history) if chart.more else "")
    return card(chart.key, chart.title, note, figure, wide=chart.wide)


def card(key: str, title: str, note: str, figure: Figure, *, wide: bool) -> Figure:
    """A figure with its words."""
    return {"key": key, "title": title, "note": note, "figure": figure, "wide": wide}


def lines(chart: Chart, history: RunHistory) -> Figure | None:
    """A line for each curve that the run tells."""
    told = chart.told(history)
    curves = chart.each(told) if chart.each else chart.curves
    drawn = [line for curve in curves if (line := line_of(told, curve)).steps]
    if not drawn:
        return None
    if all(line.curve.axis == "y2" for line in drawn):
        drawn = [line._replace(curve=replace(line.curve, axis="y")) for line in drawn]
    traces: list[Figure] = []
    axes: dict[str, list[Line]] = {}
    for line in drawn:
        traces += [*band_traces(told, line), *line_traces(line)]
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
    figure["layout"]["showlegend"] = len(curves) > 1  # which one it is that the run tells
    return figure


def shares(chart: Chart, history: RunHistory) -> Figure | None:
    """Lines of shares, and held-out accuracies with their intervals."""
    figure = lines(chart, history) or figure_of(history, [])
    traces = figure["data"] + held_out_traces(history, name="held-out prompts", colour="@accuracy")
    axis = {"tickformat": ".0%", "range": share_range(traces)}
    return figure_of(history, traces, yaxis=axis) if traces else None


def stacked_bars(chart: Chart, history: RunHistory) -> Figure | None:
    """Bars over the steps, a part for each curve."""
    told = chart.told(history)
    traces = [
        {
            "type": "bar",
            "x": [*told],
            "y": [values.get(curve.metric, 0.0) for values in told.values()],
            "name": curve.name,
            "marker": {"color": curve.colour},
            "hovertemplate": f"%{{y:{curve.text}}}{chart.unit}",
        }
        for curve in (chart.each(told) if chart.each else chart.curves)
    ]
    if not traces:
        return None
    figure = figure_of(history, traces, yaxis={"ticksuffix": chart.unit, "rangemode": "tozero"})
    figure["layout"] |= {"barmode": "stack", "bargap": 0.15 if len(told) < 80 else 0}
    return figure


def spaced(steps: list[int], limit: int = MAX_POINTS) -> list[int]:
    """At most `limit` of them, counted from the first: while a run goes on they stay what they are."""
    kept = steps[:: -(-len(steps) // (limit - 1)) if len(steps) > limit else 1]
    return kept if kept[-1:] == steps[-1:] else [*kept, steps[-1]]


def shown_steps(history: RunHistory, limit: int = MAX_POINTS) -> list[int]:
    """Steps that are shown: all, or evenly spaced ones and the last."""
    return spaced(sorted(history.steps), limit)


def line_of(told: Told, curve: Curve) -> Line:
    """The curve over the steps that tell it."""
    steps = [step for step in spaced(sorted(told)) if curve.metric in told[step]]
    values = [number(told[step][curve.metric]) for step in steps]
    return Line(curve, steps, [value if value == value else None for value in values])


def band_traces(told: Told, line: Line) -> list[Figure]:
    """The edges of the curve's band; none without one."""
    curve, steps, values = line
    if not curve.band:
        return []
    spreads = [number(told[step].get(curve.band, 0.0)) for step in steps]
    pairs = [(v, s if s == s else 0.0) for v, s in zip(values, spreads, strict=True)]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    filled = {"fill": "tonexty", "fillcolor": f"{curve.colour}-band"}
    return [
        {"x": steps, "y": [None if v is None else v + s for v, s in pairs], **edge},
        {"x": steps, "y": [None if v is None else v - s for v, s in pairs], **edge, **filled},
    ]


def held_out_traces(history: RunHistory, *, name: str, colour: str) -> list[Figure]:
    """Held-out accuracies with 95 % intervals; none without an evaluation."""
    if not history.evaluations:
        return []
    at = sorted(history.evaluations)
    shares = [history.evaluations[step].accuracy for step in at]
    bounds = [interval95(history.evaluations[step]) for step in at]
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
        "x": at,
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
    """Range 0–1 cut to what the traces and their intervals cover, with some room."""
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


def axis_layout(drawn: Sequence[Line], *, from_zero: bool = False) -> Figure:
    """Options of an axis: ticks as percent, `5.5k`, `4e-7` or plain; of a flat line its value alone."""
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
        middle, half = (low + high) / 2, largest / 20 or 0.01
        layout |= {"range": [middle - half, middle + half], "tickmode": "linear"}
        layout |= {"tick0": middle, "dtick": 4 * half}
    return layout


def line_traces(line: Line) -> list[Figure]:
    """A line; from 30 points on a moving average, with the values faint beneath it."""
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
    """Mean of the values within `radius` places; None stays None."""
    sums = [0.0, *accumulate(value or 0.0 for value in values)]
    counts = [0, *accumulate(int(value is not None) for value in values)]
    averages: Values = []
    for i, value in enumerate(values):
        first, last = max(0, i - radius), min(len(values), i + radius + 1)
        mean = (sums[last] - sums[first]) / max(counts[last] - counts[first], 1)
        averages.append(None if value is None else mean)
    return averages


def figure_of(history: RunHistory, traces: list[Figure], **layout: Figure) -> Figure:
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
    """Options of the axis of these steps."""
    first, last = min(steps, default=0), max(steps, default=1)
    pad = max(0.5, (last - first) * 0.015)
    axis: Figure = {"range": [first - pad, last + pad]}
    if last - first <= 6:
        axis["dtick"] = 1
    return axis
