"""Rows at each state of the dock over the time of one step, as stacked areas. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.record.event_types import DockEvent, StepEvent
from rljob_runtime.report.display.figures import Figure, shown_steps
from rljob_runtime.report.display.history import RunHistory

KINDS = {
    "done": "@accuracy",
    "leased": "@generate",
    "ready": "@reward-phase",
    "lacking": "@muted",
}
"""Kinds of rows at a state, from the bottom up, with their colours."""
MAX_STEPS = 100
PANEL_PIXELS, REST_PIXELS = 92, 74
GAP = 0.3
"""Space above each panel for the name of its state, relative to the panel's height."""


def row_figures(history: RunHistory) -> list[dict[str, Any]]:
    """Return a figure for each shown step whose rows were observed at least twice."""
    shown = []
    for step in shown_steps(history, MAX_STEPS):
        seconds, states = rows_of_step(history.steps[step], history.docks.get(step))
        if states and len(seconds) > 2:
            height = PANEL_PIXELS * len(states) + REST_PIXELS
            shown.append({"step": step, "height": height, "figure": _figure(seconds, states)})
    return shown


def rows_of_step(
    step: StepEvent, dock: DockEvent | None
) -> tuple[list[float], Mapping[str, Mapping[str, list[int]]]]:
    """Return the times of the observations in seconds from the step's start, and the rows at each state.

    The last observation before the start is moved to 0, and `done` counts from there. The last observation is
    repeated at the step's end.
    """
    rows = dock.rows if dock else None
    if rows is None:
        return [], {}
    late = rows.start - (step.time - step.seconds)
    seconds = [late + second for second in rows.seconds]
    first = max((i for i, second in enumerate(seconds) if second <= 0), default=0)
    states = {
        state: {kind: _shown_counts(kind, getattr(counts, kind)[first:]) for kind in KINDS}
        for state, counts in rows.states.items()
    }
    end = max(step.seconds, seconds[-1])
    return [*(max(second, 0.0) for second in seconds[first:]), end], states


def _shown_counts(kind: str, counts: Sequence[int]) -> list[int]:
    shown = [max(0, count - counts[0]) for count in counts] if kind == "done" else list(counts)
    return [*shown, shown[-1]]


def _figure(seconds: list[float], states: Mapping[str, Mapping[str, list[int]]]) -> Figure:
    traces: list[Figure] = []
    layout: Figure = {"showlegend": True, "annotations": []}
    most = max(max(map(sum, zip(*kinds.values(), strict=True))) for kinds in states.values())
    panel = 1 / (len(states) * (1 + GAP))
    for i, (state, kinds) in enumerate(states.items()):
        number = "" if i == 0 else str(i + 1)
        top = 1 - panel * (GAP + i * (1 + GAP))
        traces += [_area(seconds, kinds[kind], kind, state, number) for kind in KINDS]
        layout[f"yaxis{number}"] = {
            "domain": [max(0.0, top - panel), top],
            "range": [0, most],
            "nticks": 3,
            "tickformat": ",d",
        }
        layout["annotations"].append(_label(state, top))
    layout["xaxis"] = {
        "range": [0, seconds[-1]],
        "anchor": f"y{len(states)}" if len(states) > 1 else "y",
        "tickformat": ".3~g",
        "hoverformat": ".3~g",
        "ticksuffix": " s",
    }
    return {"data": traces, "layout": layout}


def _area(seconds: list[float], counts: list[int], kind: str, state: str, number: str) -> Figure:
    return {
        "x": seconds,
        "y": counts,
        "yaxis": f"y{number}",
        "name": kind,
        "showlegend": number == "",
        "stackgroup": state,
        "mode": "lines",
        "line": {"color": KINDS[kind], "width": 1, "shape": "hv"},
        "hovertemplate": "%{y}",
    }


def _label(state: str, top: float) -> Figure:
    return {
        "text": f"<b>{state}</b>",
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"size": 12, "color": "@text"},
    }
