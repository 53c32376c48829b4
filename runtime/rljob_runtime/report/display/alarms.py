"""Alarms of a run's guards for the page: each with its steps, and marks in the charts. Pure."""

from typing import Any

from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.wording import one_line

MAX_ALARMS = 200


def alarm_rows(history: RunHistory) -> list[dict[str, Any]]:
    """Each alarm from where it was raised to where it was over, the latest first. until: None while it is
    active; a rollback ends what it undid."""
    rows: list[dict[str, Any]] = []
    active: dict[str, dict[str, Any]] = {}
    for event in history.alarms:
        name = event.alarm
        if (before := active.pop(name, None)) is not None:
            before["until"] = event.step
        if event.state == "cleared":
            continue
        back = event.rolled_back_to
        row = {
            "guard": name,
            "policy": event.policy,
            "since": event.step if event.since is None else event.since,
            "step": event.step,
            "until": event.step if back is not None else None,
            "text": one_line(event.message),
            "rolledBackTo": back,
        }
        rows.append(row)
        if back is None:
            active[name] = row
    return rows[::-1][:MAX_ALARMS]


def alarm_marks(history: RunHistory) -> list[dict[str, Any]]:
    """A line across a chart over the steps at each alarm."""
    steps = {event.step for event in history.alarms if event.state == "raised"}
    line = {"color": "@bad", "width": 1, "dash": "dash"}
    return [
        {"type": "line", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for step in sorted(steps)[-MAX_ALARMS:]
    ]
