"""The page of `rljob diff --html`: the curves of two runs over each other, each where both have it."""

import html

from rljob_runtime.report.display.chart_table import CHARTS, reward_names
from rljob_runtime.report.display.figures import (
    Chart,
    Curve,
    Figure,
    Told,
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
    """The whole page; it opens offline, as a report does."""
    runs = {"A": diff.a.history, "B": diff.b.history}
    names = {"A": diff.a.name, "B": diff.b.name}
    shown = {
        "runs": [[run, names[run], COLOURS[run].strip("@"), runs[run].step] for run in runs],
        "charts": overlaid(runs),
    }
    return page_of(
        ["plots.js", "overlay.js"],
        template="overlay.html",
        title=f"{html.escape(diff.a.name)} and {html.escape(diff.b.name)} · rljob diff",
        data=shown,
        live="",
    )


def overlaid(runs: Runs) -> list[Figure]:
    """Charts of what all runs have, in the order of the report."""
    told: dict[str, Told] = {
        run: {s: e.metrics | {STEP_SECONDS: e.seconds} for s, e in history.steps.items()}
        for run, history in runs.items()
    }
    made = [_chart(runs, told, *REWARD, wide=True), _held_out(runs), _chart(runs, told, *PASS_RATE)]
    made += [
        _chart(runs, told, curve.metric, _title(chart, curve), chart.note, curve.text)
        for chart in CHARTS
        if chart.told is step_metrics
        and not chart.wide  # those that are wide have words of their own here
        for curve in chart.curves
    ]
    names = [reward_names(of_run) for of_run in told.values()]
    made += [
        _chart(runs, told, name, name, "Mean score, before its weight.")
        for name in names[0]
        if all(name in others for others in names)
    ]
    note = "From its first stage to its last."
    made.append(_chart(runs, told, STEP_SECONDS, "Seconds a step", note))
    return [chart for chart in made if chart is not None]


def _title(chart: Chart, curve: Curve) -> str:
    return chart.title if len(chart.curves) == 1 else f"{chart.title}: {curve.name}"


def _chart(
    runs: Runs,
    told: dict[str, Told],
    metric: str,
    title: str,
    note: str,
    text: str = ".3~g",
    *,
    wide: bool = False,
) -> Figure | None:
    drawn = [line_of(told[run], Curve(metric, run, COLOURS[run], text=text)) for run in runs]
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
