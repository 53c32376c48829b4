"""The page of `rljob diff --html`: the curves of two runs over each other, for figures that both have."""

import html

from rljob_runtime.report.display.chart_table import CHARTS, reward_names
from rljob_runtime.report.display.figures import (
    Chart,
    Curve,
    Figure,
    StepValues,
    axis_layout,
    card,
    held_out_traces,
    line_of,
    line_traces,
    share_range,
    step_metrics,
    steps_axis,
)
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.report import page_of
from rljob_runtime.report.display.run_diff import RunDiff

COLOURS = {"A": "@generate", "B": "@reward-phase"}
STEP_SECONDS = "seconds"
REWARD = ("reward/mean", "Reward", "Mean over the step's samples.")
PASS_RATE = ("pass_rate", "Training accuracy", "Share of the step's samples that pass.", ".1%")
Runs = dict[str, RunHistory]


def render_overlay(diff: RunDiff) -> str:
    """Render the page, which works offline like a report."""
    runs = {"A": diff.a.history, "B": diff.b.history}
    names = {"A": diff.a.name, "B": diff.b.name}
    shown = {
        "runs": [[run, names[run], COLOURS[run].strip("@"), runs[run].step] for run in runs],
        "charts": overlay_charts(runs),
    }
    return page_of(
        ["plots.js", "overlay.js"],
        template="overlay.html",
        title=f"{html.escape(diff.a.name)} and {html.escape(diff.b.name)} · rljob diff",
        data=shown,
        live="",
    )


def overlay_charts(runs: Runs) -> list[Figure]:
    """Return the charts of the figures that all runs have, in the order of the report."""
    step_values: dict[str, StepValues] = {
        run: {s: e.metrics | {STEP_SECONDS: e.seconds} for s, e in history.steps.items()}
        for run, history in runs.items()
    }
    overlays = [
        _chart(runs, step_values, *REWARD, wide=True),
        _held_out(runs),
        _chart(runs, step_values, *PASS_RATE),
    ]
    overlays += [
        _chart(runs, step_values, curve.metric, _title(chart, curve), chart.note, curve.text)
        for chart in CHARTS
        if chart.values is step_metrics and not chart.wide  # the texts of wide charts differ here
        for curve in chart.curves
    ]
    names = [reward_names(of_run) for of_run in step_values.values()]
    overlays += [
        _chart(runs, step_values, name, name, "Mean score, before its weight.")
        for name in names[0]
        if all(name in others for others in names)
    ]
    note = "From its first stage to its last."
    overlays.append(_chart(runs, step_values, STEP_SECONDS, "Seconds a step", note))
    return [chart for chart in overlays if chart is not None]


def _title(chart: Chart, curve: Curve) -> str:
    return chart.title if len(chart.curves) == 1 else f"{chart.title}: {curve.name}"


def _chart(
    runs: Runs,
    step_values: dict[str, StepValues],
    metric: str,
    title: str,
    note: str,
    text: str = ".3~g",
    *,
    wide: bool = False,
) -> Figure | None:
    drawn = [line_of(step_values[run], Curve(metric, run, COLOURS[run], text=text)) for run in runs]
    if not all(line.steps for line in drawn):
        return None
    traces = [trace for line in drawn for trace in line_traces(line)]
    return _overlay(runs, metric, title, note, traces, axis_layout(drawn), wide=wide)


def _held_out(runs: Runs) -> Figure | None:
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
) -> Figure:
    steps = {step for history in runs.values() for step in (*history.steps, *history.evaluations)}
    layout = {"showlegend": True, "xaxis": steps_axis(steps), "yaxis": axis}
    figure = {"data": traces, "layout": layout}
    return card(metric.replace("/", "-"), title, note, figure, wide=wide)
