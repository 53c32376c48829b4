"""Charts of a run as Plotly figures in plain dicts. Pure: history in, JSON-able dicts out.

Colours are tokens such as `@reward`; the report's script replaces them by those of the light or dark
theme. Titles stand in the page, not in the figures.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rljob_runtime.report.display.alarms import alarm_marks
from rljob_runtime.report.display.curves import CURVE_CHARTS, Curve
from rljob_runtime.report.display.history import RunHistory, interval95
from rljob_runtime.report.display.totals import number

Figure = dict[str, Any]
Values = list[float | None]
SMOOTH_FROM = 30
MAX_POINTS = 2000
OF_ALL_REWARDS = ("reward/mean", "reward/std", "reward/errors", "reward/error_share")
"""Metrics that are of no single reward."""
MOST_DEVICES = 16
"""Whose memory is drawn."""
AXES = {"y": "yaxis", "y2": "yaxis2"}
SERIES = ("@generate", "@update", "@reference", "@reward-phase", "@bad")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure with its words. key: also the element's id. wide: over the whole row."""

    key: str
    title: str
    note: str
    figure: Figure
    wide: bool = False

    def plain(self) -> Figure:
        """The chart as the page takes it."""
        return {name: getattr(self, name) for name in self.__slots__}


def charts(history: RunHistory) -> list[Chart]:
    """All charts that the run has data for, in reading order."""
    made = [reward_chart(history), accuracy_chart(history)]
    made += [curves_chart(history, *words) for words in CURVE_CHARTS]
    made += [parts_chart(history), memory_chart(history)]
    return [chart for chart in made if chart is not None]


def shown_steps(history: RunHistory, limit: int = MAX_POINTS) -> list[int]:
    """Steps that are shown: all, or evenly spaced ones and the last."""
    return spaced(sorted(history.steps), limit)


def spaced(steps: list[int], limit: int) -> list[int]:
    """At most `limit` of them, counted from the first: while a run goes on they stay what they are."""
    kept = steps[:: -(-len(steps) // (limit - 1)) if len(steps) > limit else 1]
    return kept if kept[-1:] == steps[-1:] else [*kept, steps[-1]]


def reward_chart(history: RunHistory) -> Chart | None:
    """Mean reward, with a band of one standard deviation between samples."""
    steps, means = points(history, "reward/mean")
    if not steps:
        return None
    spreads = [number(history.steps[s].metrics.get("reward/std", 0.0)) for s in steps]
    pairs = list(zip(means, spreads, strict=True))
    low = [None if m is None else m - (s if s == s else 0.0) for m, s in pairs]
    high = [None if m is None else m + (s if s == s else 0.0) for m, s in pairs]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    band = [
        {"x": steps, "y": high, **edge},
        {"x": steps, "y": low, **edge, "fill": "tonexty", "fillcolor": "@reward-band"},
    ]
    curve = Curve(metric="reward/mean", name="mean reward", colour="@reward")
    return Chart(
        key="reward",
        title="Reward",
        note="Mean over the step's samples; the band is one standard deviation between samples.",
        figure=figure_of(history, [*band, *line_traces(steps, means, curve)]),
        wide=True,
    )


def accuracy_chart(history: RunHistory) -> Chart | None:
    """Pass rate of the training samples and held-out accuracy with 95 % intervals."""
    steps, rates = points(history, "pass_rate")
    curve = Curve(metric="pass_rate", name="training samples", colour="@muted", text=".1%")
    traces = line_traces(steps, rates, curve) if steps else []
    traces += held_out_traces(history, name="held-out prompts", colour="@accuracy")
    if not traces:
        return None
    return Chart(
        key="accuracy",
        title="Accuracy",
        note="Share of samples that pass; held-out prompts with 95 % intervals.",
        figure=figure_of(
            history, traces, yaxis={"tickformat": ".0%", "range": share_range(traces)}
        ),
        wide=True,
    )


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


def curves_chart(
    history: RunHistory, key: str, title: str, note: str, curves: Sequence[Curve]
) -> Chart | None:
    """Curves of the metrics that the run has; None if it has none of them."""
    traces: list[Figure] = []
    axes: dict[str, list[tuple[Curve, Values]]] = {}
    for curve in curves:
        steps, values = points(history, curve.metric)
        if steps:
            traces += line_traces(steps, values, curve)
            axes.setdefault(curve.axis, []).append((curve, values))
    if not traces:
        return None
    layout = {AXES[axis]: axis_layout(drawn) for axis, drawn in axes.items()}
    if "yaxis2" in layout:
        layout["yaxis2"] |= {"overlaying": "y", "side": "right", "showgrid": False}
    return Chart(key=key, title=title, note=note, figure=figure_of(history, traces, **layout))


def parts_chart(history: RunHistory) -> Chart | None:
    """Each reward on its own, where there are several."""
    names = [n for n in history.last_metrics if n.startswith("reward/") and n not in OF_ALL_REWARDS]
    if len(names) < 2:
        return None
    curves = [
        Curve(metric=name, name=name.removeprefix("reward/"), colour=SERIES[i % len(SERIES)])
        for i, name in enumerate(names)
    ]
    note = "Mean score of each reward, before its weight."
    return curves_chart(history, "reward-parts", "Rewards one by one", note, curves)


def memory_chart(history: RunHistory) -> Chart | None:
    """Largest bytes that each device held within a step; of many devices, the fullest."""
    metrics = history.last_metrics
    devices = [name for name in metrics if name.startswith("memory/peak_bytes/")]
    fullest = sorted(devices, key=lambda name: -(metrics[name] or 0))[:MOST_DEVICES]
    names = [name for name in devices if name in fullest]
    curves = [
        Curve(
            metric=n,
            name=f"device {n.rsplit('/', 1)[1]}",
            colour=SERIES[i % len(SERIES)],
            smooth=False,
        )
        for i, n in enumerate(names)
    ]
    note = "Largest number of bytes that a device held within the step."
    if len(devices) > len(names):
        note += f" The {len(names)} of {len(devices)} devices that held most in the last step."
    chart = curves_chart(history, "memory", "Device memory", note, curves)
    if chart:
        chart.figure["layout"]["yaxis"] |= {"tickformat": ".3~s", "ticksuffix": "B"}
    return chart


def phase_chart(history: RunHistory) -> Chart | None:
    """Seconds of each phase, stacked, over the steps."""
    steps = shown_steps(history, 400)
    by_step = {step: history.phase_seconds(step) for step in steps}
    names = list(dict.fromkeys(name for phases in by_step.values() for name in phases))
    if not names:
        return None
    traces = [
        {
            "type": "bar",
            "x": steps,
            "y": [by_step[step].get(name, 0.0) for step in steps],
            "name": name,
            "marker": {"color": "@reward-phase" if name == "reward" else f"@{name}"},
            "hovertemplate": "%{y:.3f} s",
        }
        for name in names
    ]
    figure = figure_of(history, traces, yaxis={"ticksuffix": " s", "rangemode": "tozero"})
    figure["layout"] |= {"barmode": "stack", "bargap": 0.15 if len(steps) < 80 else 0}
    note = "Seconds of each phase, the slowest worker's; phases that overlap add up to more than the step."
    return Chart(key="phases", title="Phases", note=note, figure=figure, wide=True)


def points(history: RunHistory, metric: str) -> tuple[list[int], Values]:
    """Steps that have the metric, and its values; None where it was not finite."""
    steps = [s for s in shown_steps(history) if metric in history.steps[s].metrics]
    values = [number(history.steps[step].metrics[metric]) for step in steps]
    return steps, [value if value == value else None for value in values]


def axis_layout(drawn: Sequence[tuple[Curve, Values]]) -> Figure:
    """Options of an axis: ticks as percent, `5.5k`, `4e-7` or plain; room around a flat line."""
    finite = [value for _, values in drawn for value in values if value is not None]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    largest = max(abs(low), abs(high))
    if drawn[0][0].text.endswith("%"):
        ticks = ".1~%"
    else:
        ticks = ".3~s" if largest >= 1000 else ".2~e" if 0 < largest < 0.001 else ".3~g"
    layout: Figure = {"tickformat": ticks, "tickmode": "auto"}
    if low == high:
        half = abs(low) / 2 or 0.5
        layout["range"] = [low - half, high + half]
    return layout


def line_traces(steps: list[int], values: Values, curve: Curve) -> list[Figure]:
    """A line; from 30 points on a moving average, with the values faint beneath it."""
    trace: Figure = {
        "x": steps,
        "y": values,
        "name": curve.name,
        "yaxis": curve.axis,
        "mode": "lines+markers" if len(steps) <= 12 else "lines",
        "line": {"color": curve.colour, "width": 2 if curve.axis == "y" else 1.5},
        "marker": {"size": 6},
        "hovertemplate": f"%{{y:{curve.text}}}",
    }
    if not curve.smooth or len(steps) < SMOOTH_FROM:
        return [trace]
    faint = trace | {"opacity": 0.3, "line": {"color": curve.colour, "width": 1}}
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
