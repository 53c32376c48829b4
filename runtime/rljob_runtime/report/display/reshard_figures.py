"""Charts of resharding over the steps, and a device's bytes through one as in the paper's Fig. 10. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.record.event_types import InFlightEvent, ReshardEvent
from rljob_runtime.report.display.curves import Curve
from rljob_runtime.report.display.figures import (
    Chart,
    Figure,
    Values,
    axis_layout,
    figure_of,
    line_traces,
    spaced,
)
from rljob_runtime.report.display.history import RunHistory

PHASES = {
    "gather_seconds": ("gather", "@generate"),
    "select_seconds": ("select", "@update"),
    "swap_seconds": ("swap to the host", "@reference"),
    "back_seconds": ("back from the host", "@reward-phase"),
    "check_seconds": ("checks", "@muted"),
}
KINDS = {
    "update_bytes": ("update weights", "@update"),
    "rollout_bytes": ("rollout weights", "@generate"),
    "buffer_bytes": ("buffers", "@reward-phase"),
    "cache_bytes": ("KV cache", "@reference"),
    "other_bytes": ("other", "@muted"),
}
"""Of a device's bytes, from below."""
MAX_STEPS, MAX_POINTS = 100, 2000


def reshard_charts(history: RunHistory) -> list[Chart]:
    """All charts of resharding that the run has data for, in reading order."""
    made = [_seconds_chart(history), _share_chart(history), _bytes_chart(history)]
    return [chart for chart in made if chart is not None]


def stands_still(reshard: ReshardEvent, step_seconds: float | None) -> float | None:
    """Share of a step in which devices reshard and do nothing else: there, and what is waited for of the way
    back. None without the step, as before the first."""
    if not step_seconds:
        return None
    overlap = 1.0 if reshard.overlap is None else reshard.overlap
    waited = (1 - overlap) * (reshard.back_seconds or 0.0)
    return (reshard.seconds + waited) / step_seconds


def memory_figures(history: RunHistory) -> list[dict[str, Any]]:
    """A figure for each shown reshard whose course was told."""
    told = [step for step in sorted(history.reshards) if _course(history.reshards[step])]
    return [
        {"step": step, "figure": _memory_figure(history.reshards[step])}
        for step in spaced(told, MAX_STEPS)
    ]


def _seconds_chart(history: RunHistory) -> Chart | None:
    curves = {"seconds": Curve(metric="seconds", name="reshard", colour="@text", smooth=False)}
    for field, (name, colour) in PHASES.items():
        curves[field] = Curve(metric=field, name=name, colour=colour, smooth=False)
    note = "Of the slowest device. Gather, select and swap overlap; the way back runs beside what follows."
    told = history.reshards
    return curves_of(history, told, "reshard-seconds", "Seconds of a reshard", note, curves, " s")


def _share_chart(history: RunHistory) -> Chart | None:
    steps = shown(history.reshards)
    shares = [stands_still(history.reshards[step], history.seconds(step)) for step in steps]
    hidden = [history.reshards[step].overlap for step in steps]
    share = Curve(metric="share", name="of the step", colour="@update", text=".1%")
    overlap = Curve(metric="overlap", name="way back, hidden", colour="@muted", text=".1%")
    drawn: list[tuple[Curve, Values]] = [
        (curve, values)
        for curve, values in ((share, shares), (overlap, hidden))
        if any(value is not None for value in values)
    ]
    if not drawn:
        return None
    traces = [trace for curve, values in drawn for trace in line_traces(steps, values, curve)]
    axis = axis_layout(drawn) | {"rangemode": "tozero"}
    note = (
        "Share of a step in which devices only reshard, and of the way back that other work hides."
    )
    figure = figure_of(history, traces, yaxis=axis)
    return Chart(key="reshard-share", title="Share and overlap", note=note, figure=figure)


def _bytes_chart(history: RunHistory) -> Chart | None:
    curves = {
        "peak_bytes": Curve(metric="peak_bytes", name="peak", colour="@generate", smooth=False),
        "bound_bytes": Curve(metric="bound_bytes", name="bound", colour="@bad", smooth=False),
    }
    note = "Weights and buffers of the fullest device while it reshards, and what they may be."
    told = history.reshards
    return curves_of(history, told, "reshard-bytes", "Peak of a device", note, curves, "B")


def curves_of(
    history: RunHistory,
    told: Mapping[int, ReshardEvent] | Mapping[int, InFlightEvent],
    key: str,
    title: str,
    note: str,
    curves: Mapping[str, Curve],
    unit: str,
) -> Chart | None:
    """Fields of events over their steps; None where no event has any. curves: by field."""
    steps = shown(told)
    drawn: list[tuple[Curve, Values]] = []
    for field, curve in curves.items():
        values: Values = [getattr(told[step], field) for step in steps]
        if any(value is not None for value in values):
            drawn.append((curve, values))
    if not drawn:
        return None
    traces = [trace for curve, values in drawn for trace in line_traces(steps, values, curve)]
    axis = axis_layout(drawn) | {"ticksuffix": unit, "rangemode": "tozero"}
    if unit == "B":
        axis["tickformat"] = ".3~s"
    figure = figure_of(history, traces, yaxis=axis)
    return Chart(key=key, title=title, note=note, figure=figure)


def shown(told: Mapping[int, ReshardEvent] | Mapping[int, InFlightEvent]) -> list[int]:
    """Steps that curves show, of those that were told."""
    steps = sorted(told)
    return steps[:: -(-len(steps) // MAX_POINTS) or 1]


def _course(reshard: ReshardEvent) -> dict[str, Sequence[float]]:
    """Bytes by kind, where they were told at least twice."""
    memory = reshard.memory
    seconds = memory.seconds if memory else []
    told = {kind: getattr(memory, kind, None) or [] for kind in KINDS}
    kinds = {kind: sizes for kind, sizes in told.items() if sizes and len(sizes) == len(seconds)}
    return {"seconds": seconds, **kinds} if len(seconds) > 1 and kinds else {}


def _memory_figure(reshard: ReshardEvent) -> Figure:
    course = _course(reshard)
    seconds = course.pop("seconds")
    areas = [
        {
            "x": seconds,
            "y": course[kind],
            "name": name,
            "stackgroup": "bytes",
            "mode": "lines",
            "line": {"color": colour, "width": 1, "shape": "hv"},
            "hovertemplate": "%{y:.3~s}B",
        }
        for kind, (name, colour) in KINDS.items()
        if any(course.get(kind, ()))
    ]
    lines = [_level(seconds, reshard.bound_bytes, "bound of weights and buffers", "@bad")]
    both = max(course.get("update_bytes", [0])) + max(course.get("rollout_bytes", [0]))
    if not reshard.kept_bytes:
        lines.append(_level(seconds, both, "weights of both layouts, as without a swap", "@text"))
    axis = {"tickformat": ".3~s", "ticksuffix": "B", "rangemode": "tozero"}
    times = {
        "range": [seconds[0], seconds[-1]],
        "tickformat": ".3~g",
        "hoverformat": ".3~g",
        "ticksuffix": " s",
    }
    layout = {"showlegend": True, "xaxis": times, "yaxis": axis}
    return {"data": [*areas, *lines], "layout": layout}


def _level(seconds: Sequence[float], height: float, name: str, colour: str) -> Figure:
    return {
        "x": [seconds[0], seconds[-1]],
        "y": [height, height],
        "name": name,
        "mode": "lines",
        "line": {"color": colour, "width": 1.5, "dash": "dot"},
        "hovertemplate": "%{y:.3~s}B",
    }
