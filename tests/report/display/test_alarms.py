"""Alarms of a run's guards in the report: each once, with its steps, and marked in the charts."""

from run_events import history_of

from rljob_runtime.report.display.chart_table import charts
from rljob_runtime.report.display.document import document


def alarm(step: int, name: str, state: str = "raised", **others: object) -> dict[str, object]:
    return {
        "time": 0.0, "kind": "alarm", "step": step, "alarm": name, "state": state,
        "policy": "warn", "message": f"{name}\nof step {step}", "since": step - 2, **others,
    }  # fmt: skip


def test_an_alarm_lasts_until_it_is_over_or_raised_again_or_rolled_back(events_of) -> None:
    events = [
        alarm(5, "entropyCollapse"),
        alarm(6, "lengthExplosion"),
        alarm(7, "entropyCollapse", "cleared"),
        alarm(8, "lengthExplosion"),
        alarm(9, "nonFinite", policy="rollback", rolled_back_to=9),
        alarm(9, "ratioOutOfRange", "cleared"),
    ]
    history = history_of([*events_of(steps=9), *events])

    rows = document(history, "")["alarms"]

    told = [(row["guard"], row["since"], row["step"], row["until"]) for row in rows]
    assert told == [
        ("nonFinite", 7, 9, 9),
        ("lengthExplosion", 6, 8, None),
        ("lengthExplosion", 4, 6, 8),
        ("entropyCollapse", 3, 5, 7),
    ]
    assert rows[0]["rolledBackTo"] == 9
    assert rows[-1]["text"] == "entropyCollapse⏎of step 5"


def test_charts_over_the_steps_are_marked_where_alarms_were_raised(events_of) -> None:
    events = [alarm(5, "lengthExplosion"), alarm(5, "nonFinite"), alarm(7, "nonFinite", "cleared")]
    history = history_of([*events_of(steps=9), *events])

    for chart in charts(history):
        assert [shape["x0"] for shape in chart["figure"]["layout"]["shapes"]] == [5]
