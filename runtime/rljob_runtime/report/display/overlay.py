"""The page of `rljob diff --html`: the curves of two runs over each other, each where both have it."""

import html
from collections.abc import Iterator

from rljob_runtime.report.display.curves import CURVE_CHARTS, Curve
from rljob_runtime.report.display.figures import (
    OF_ALL_REWARDS,
    Chart,
    Figure,
    Values,
    axis_layout,
    held_out_traces,
    line_traces,
    points,
    share_range,
    shown_steps,
    steps_axis,
)
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.report import page_of, script_json
from rljob_runtime.report.display.run_diff import RunDiff

COLOURS = {"A": "@generate", "B": "@reward-phase"}
STEP_SECONDS = "seconds"
REWARD = ("reward/mean", "Reward", "Mean over the step's samples.")
PASS_RATE = ("pass_rate", "Training accuracy", "Share of the step's samples that pass.", ".1%")
Runs = dict[str, RunHistory]


def render_overlay(diff: RunDiff) -> str:
    """The whole page; it opens offline, as a report does."""
    runs = {"A": diff.a.history, "B": diff.b.history}
    names = {"A": diff.a.name, "B": diff.b.name}
    shown = {
        "runs": [[run, names[run], COLOURS[run].strip("@"), runs[run].step] for run in runs],
        "charts": [chart.plain() for chart in overlaid(runs)],
    }
    return page_of(
        ["plots.js", "overlay.js"],
        template="overlay.html",
        title=f"{html.escape(diff.a.name)} and {html.escape(diff.b.name)} · rljob diff",
        data=script_json(shown),
        live="",
    )


def overlaid(runs: Runs) -> list[Chart]:
    """Charts of what all runs have, in the order of the report."""
    made = [_chart(runs, *REWARD, wide=True), _held_out(runs), _chart(runs, *PASS_RATE)]
    made += [
        _chart(runs, curve.metric, _title(title, curve, len(curves)), note, curve.text)
        for _, title, note, curves in CURVE_CHARTS
        for curve in curves
    ]
    made += [_chart(runs, name, name, "Mean score, before its weight.") for name in _parts(runs)]
    made.append(_chart(runs, STEP_SECONDS, "Seconds a step", "From its first stage to its last."))
    return [chart for chart in made if chart is not None]


def _title(title: str, curve: Curve, number_of_curves: int) -> str:
    return title if number_of_curves == 1 else f"{title}: {curve.name}"


def _parts(runs: Runs) -> Iterator[str]:
    """Metrics of single rewards that all runs have."""
    last = [history.last_metrics for history in runs.values()]
    for name in last[0]:
        of_one = name.startswith("reward/") and name not in OF_ALL_REWARDS
        if of_one and all(name in metrics for metrics in last):
            yield name


def _chart(
    runs: Runs, metric: str, title: str, note: str, text: str = ".3~g", *, wide: bool = False
) -> Chart | None:
    traces: list[Figure] = []
    drawn: list[tuple[Curve, Values]] = []
    for run, history in runs.items():
        steps, values = _points(history, metric)
        if not steps:
            return None
        curve = Curve(metric=metric, name=run, colour=COLOURS[run], text=text)
        traces += line_traces(steps, values, curve)
        drawn.append((curve, values))
    return _overlay(runs, metric, title, note, traces, axis_layout(drawn), wide=wide)


def _points(history: RunHistory, metric: str) -> tuple[list[int], Values]:
    if metric != STEP_SECONDS:
        return points(history, metric)
    steps = shown_steps(history)
    return steps, [history.steps[step].seconds for step in steps]


def _held_out(runs: Runs) -> Chart | None:
    if not all(history.evaluations for history in runs.values()):
        return None
    traces = [
        trace
        for run, history in runs.items()
        for trace in held_out_traces(history, name=run, colour=COLOURS[run])
    ]
    note = "Share of held-out samples that pass, with 95 % intervals."
    axis: Figure = {"tickformat": ".0%", "range": share_range(traces)}
    return _overlay(runs, "accuracy", "Held-out accuracy", note, traces, axis, wide=True)


def _overlay(
    runs: Runs,
    metric: str,
    title: str,
    note: str,
    traces: list[Figure],
    axis: Figure,
    *,
    wide: bool,
) -> Chart:
    steps = {step for history in runs.values() for step in (*history.steps, *history.evaluations)}
    layout = {"showlegend": True, "xaxis": steps_axis(steps), "yaxis": axis}
    figure = {"data": traces, "layout": layout}
    return Chart(key=metric.replace("/", "-"), title=title, note=note, figure=figure, wide=wide)
