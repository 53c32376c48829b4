"""Alarms of a run's guards for the page: a row for each with its steps, and marks in the charts. Pure."""

from typing import Any

from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.wording import one_line

MAX_ALARMS = 200


def alarm_rows(history: RunHistory) -> list[dict[str, Any]]:
    """Return a row for each alarm, the latest first.

    until: step at which it was cleared, None while it is active. A rollback ends the alarm that caused it.
    """
    rows: list[dict[str, Any]] = []
    active: dict[str, dict[str, Any]] = {}
    for event in history.alarms:
        name = event.alarm
        if (replaced := active.pop(name, None)) is not None:
            replaced["until"] = event.step
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
    """Return a vertical line at each step with a raised alarm, for charts over the steps."""
    steps = {event.step for event in history.alarms if event.state == "raised"}
    line = {"color": "@bad", "width": 1, "dash": "dash"}
    return [
        {"type": "line", "x0": step, "x1": step, "yref": "paper", "y0": 0, "y1": 1, "line": line}
        for step in sorted(steps)[-MAX_ALARMS:]
    ]
