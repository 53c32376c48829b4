"""Weights that came while devices generated: in the report, on the terminal and between two runs."""

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from run_events import event_of, history_of

from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.in_flight_figures import (
    hidden_share,
    in_flight_table,
    in_flight_text,
)
from rljob_runtime.report.display.panels import reshard
from rljob_runtime.report.display.plain import step_line
from rljob_runtime.report.display.run_diff import ComparedRun, diff_runs

Event = dict[str, Any]
MIB = 2**20


def in_flight_event(step: int, **changes: Any) -> Event:
    return {
        "time": 1_760_000_000.0,
        "kind": "in_flight",
        "step": step,
        "before": step - 1,
        "received_seconds": 0.4,
        "hidden_seconds": 0.3,
        "received_bytes": 8 * MIB,
        "tokens": 1240,
        "switch_seconds": 0.004,
        "check_seconds": 0.01,
        "devices": 2,
        "generating": 1,
        **changes,
    }


@pytest.fixture
def told(events_of):
    """Events of a run whose weights came in flight after each step, just before the next one ended."""

    def of(*, steps: int = 3, **changes: Any) -> list[Event]:
        found = []
        for event in events_of(steps=steps, every=None):
            if event["kind"] == "step":
                told = in_flight_event(event["step"] - 1, time=event["time"], **changes)
                found += [told] if event["step"] > 1 else []
            found.append(event)
        return found

    return of


@pytest.fixture
def run_of(told):
    """Its history."""
    return lambda **options: history_of(told(**options))


def test_the_table_has_what_was_hidden_drawn_and_stood_still(run_of) -> None:
    history = run_of()
    history.add(
        event_of(in_flight_event(3, received_seconds=0.8, hidden_seconds=0.2, switch_seconds=0.008))
    )

    rows = {row["label"]: row for row in in_flight_table(history)}

    assert (rows["on the way"]["median"], rows["on the way"]["largest"]) == (0.4, 0.8)
    assert rows["hidden"]["median"] == pytest.approx(0.75)
    assert rows["hidden"]["last"] == pytest.approx(0.25)
    assert rows["tokens meanwhile"]["last"] == 1240
    assert rows["generation stands still"]["largest"] == 0.008
    assert rows["received in a second"]["largest"] == pytest.approx(20 * MIB)


def test_the_report_has_table_and_chart_in_the_section_on_resharding(run_of) -> None:
    shown = document(run_of(), spec="")

    json.dumps(shown, allow_nan=False)
    assert [row["label"] for row in shown["inFlight"]][:2] == ["on the way", "behind generation"]
    [chart] = shown["reshardCharts"]
    assert chart["key"] == "in-flight-seconds"
    drawn = {trace["name"]: trace["y"] for trace in chart["figure"]["data"]}
    assert drawn == {
        "on the way": [0.4, 0.4],
        "behind generation": [0.3, 0.3],
        "generation stands still": [0.004, 0.004],
    }


def test_a_log_that_tells_little_shows_what_it_tells(run_of) -> None:
    history = run_of(hidden_seconds=None, tokens=None, before=None, received_bytes=None)

    assert hidden_share(history.in_flight[1]) is None
    labels = {row["label"] for row in in_flight_table(history)}
    assert {"hidden", "tokens meanwhile", "received"}.isdisjoint(labels)
    assert in_flight_text(history.in_flight[1]) == "version 1 · 0.40 s · copy 0.004 s"


def test_the_terminal_tells_the_last_versions_way(run_of) -> None:
    history = run_of()
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115

    [line] = reshard(history, 120)
    console.print(line)

    text = "version 1 → 2 · 0.40 s, 75 % behind generation · 1 240 tokens meanwhile · copy 0.004 s"
    assert console.export_text().split() == ["weights", "in", "flight", *text.split()]
    assert "in flight 0.40 s" in step_line(history)


def test_a_step_in_which_no_weights_came_has_none_in_its_line(run_of) -> None:
    history = run_of()
    last = history.steps[3]
    history.add(replace(last, step=4, time=last.time + 1))

    assert "in flight" not in step_line(history)


def test_a_run_that_goes_back_forgets_versions_that_it_makes_again(run_of) -> None:
    history = run_of()

    history.add(
        event_of({"time": 2e9, "kind": "run_started", "name": "n", "steps": 9, "resumed_from": 1})
    )

    assert sorted(history.in_flight) == [1]


def test_two_runs_compare_the_seconds_of_their_weights_in_flight(told, tmp_path) -> None:
    def run(name: str, **changes: float) -> ComparedRun:
        (tmp_path / name).mkdir()
        lines = "\n".join(map(json.dumps, told(steps=8, **changes)))
        (tmp_path / name / "events.jsonl").write_text(lines)
        return ComparedRun.of(tmp_path / name)

    phases = diff_runs(run("a"), run("b", received_seconds=0.2, hidden_seconds=0.2)).phases

    assert phases["weights in flight"] == (0.4, 0.2)
    assert phases["weights in flight, behind generation"] == (0.3, 0.2)
    assert phases["weights in flight, generation stands still"] == (0.004, 0.004)


def test_a_run_without_them_has_no_table(events_of) -> None:
    assert document(history_of(events_of(steps=2)), spec="")["inFlight"] == []
