"""The report's panel of the dock: who waits for whom, what flows, rows by state, what was lost."""

import itertools
import json

import pytest
from run_events import history_of

from rljob_runtime.record.event_types import DockEvent, Rows, StateRows, StepEvent
from rljob_runtime.report.display.chart_table import charts
from rljob_runtime.report.display.dock_rows import row_figures, rows_of_step
from rljob_runtime.report.display.dock_tables import dock_tables
from rljob_runtime.report.display.document import document


def test_lines_show_who_waited_for_whom_what_flowed_and_how_full_it_was(events_of) -> None:
    history = history_of(events_of(steps=5))
    event, seconds = history.docks[3], history.steps[3].seconds

    drawn = {chart["key"]: chart["figure"]["data"] for chart in charts(history, "dockCharts")}
    at_step_3 = {
        key: {trace["name"]: trace["y"][2] for trace in traces}
        for key, traces in drawn.items()
        if key != "dock-staleness"
    }

    waits = {name: values.waits for name, values in event.states.items()}
    assert at_step_3["dock-waits"]["update for reward"] == waits["update"]["reward"]
    assert at_step_3["dock-waits"]["generate for feed"] == waits["generate"]["feed"]
    assert at_step_3["dock-edges"]["reward → update"] == 128 * 300 / seconds
    assert at_step_3["dock-held"] == {"warehouse 0": 128 * 700}


def test_a_pair_that_did_not_wait_in_a_step_waited_for_no_time(events_of) -> None:
    events = events_of(steps=3)
    [second] = [e for e in events if e["kind"] == "dock" and e["step"] == 2]
    second["states"]["update"]["waits"] = {}

    [chart] = [c for c in charts(history_of(events), "dockCharts") if c["key"] == "dock-waits"]

    [line] = [trace for trace in chart["figure"]["data"] if trace["name"] == "update for reward"]
    assert line["y"][1] == 0.0 < line["y"][0]


def test_lines_beyond_the_colours_are_told_apart_by_their_dashes(events_of) -> None:
    events = events_of(steps=3)
    for event in events:
        if event["kind"] == "dock":
            pairs = [{"from": "a", "to": str(i), "rows": 1, "bytes": 1} for i in range(7)]
            event["edges"] = pairs

    [chart] = [c for c in charts(history_of(events), "dockCharts") if c["key"] == "dock-edges"]

    looks = [(trace["line"]["color"], trace["line"]["dash"]) for trace in chart["figure"]["data"]]
    assert len(set(looks)) == len(looks) == 7


def test_staleness_is_counted_over_all_rows_of_the_run(events_of) -> None:
    events = events_of(steps=3)
    for event, ages in zip(
        [e for e in events if e["kind"] == "step"],
        [{"0": 128}, {"0": 28, "2": 100}, {}],
        strict=True,
    ):
        event["staleness"] = ages

    [chart] = [c for c in charts(history_of(events), "dockCharts") if c["key"] == "dock-staleness"]

    [bars] = chart["figure"]["data"]
    assert dict(zip(bars["x"], bars["y"], strict=True)) == {0: 156, 1: 0, 2: 100}


def test_rows_are_shown_from_the_steps_start_and_done_counts_from_there() -> None:
    step = StepEvent(time=110.0, step=1, seconds=10.0, metrics={})
    none, ready, done = [0] * 4, [8, 9, 4, 0], [0, 5, 7, 13]
    counts = StateRows(lacking=none, ready=ready, leased=none, done=done)
    rows = Rows(start=98.0, seconds=[0.0, 1.5, 4.0, 9.0], states={"generate": counts})

    seconds, states = rows_of_step(step, DockEvent(step=1, rows=rows))

    assert seconds == [0.0, 2.0, 7.0, 10.0]
    assert states["generate"]["ready"] == [9, 4, 0, 0]
    assert states["generate"]["done"] == [0, 2, 8, 8]


def test_each_state_has_a_panel_whose_areas_add_up_to_its_rows(events_of) -> None:
    history = history_of(events_of(steps=2))

    [first, _] = row_figures(history)

    data, layout = first["figure"]["data"], first["figure"]["layout"]
    assert [note["text"] for note in layout["annotations"]] == [
        f"<b>{state}</b>" for state in ("generate", "reference", "reward", "update")
    ]
    for number in ("", "2", "3", "4"):
        areas = [trace["y"] for trace in data if trace["yaxis"] == f"y{number}"]
        assert [sum(counts) for counts in zip(*areas, strict=True)] == [128] * 6
        assert layout[f"yaxis{number}"]["range"] == [0, 128]
    bottoms = [layout[f"yaxis{number}"]["domain"] for number in ("", "2", "3", "4")]
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(bottoms))


@pytest.mark.parametrize("rows", [None, {}, {"start": 0.0, "seconds": [0.0], "states": {}}])
def test_steps_whose_rows_were_hardly_seen_are_left_out(events_of, rows) -> None:
    events = events_of(steps=2)
    for event in events:
        if event["kind"] == "dock" and event["step"] == 1:
            event["rows"] = rows

    assert [shown["step"] for shown in row_figures(history_of(events))] == [2]


def test_tables_add_up_the_run(events_of) -> None:
    events = events_of(steps=4)
    docks = [event for event in events if event["kind"] == "dock"]
    docks[1] |= {"dropped": {"lost": 128}, "regenerated": 128}
    docks[2] |= {"dropped": {"lost": 128, "stale": 128}, "regenerated": 256}
    history = history_of(events)

    told = dock_tables(history)

    assert told is not None
    waits = sum(event["states"]["update"]["waits"]["reward"] for event in docks)
    assert told["states"]["update"]["waits"] == {"reward": pytest.approx(waits)}
    edge = next(edge for edge in told["edges"] if edge["to"] == "update")
    seconds = sum(event.seconds for event in history.steps.values())
    assert (edge["from"], edge["rows"], edge["bytes"]) == ("reward", 512, 4 * 128 * 300)
    assert edge["rows_per_second"] == pytest.approx(512 / seconds)
    assert told["dropped"] == [
        {"reason": "lost", "rows": 256, "steps": [2, 3]},
        {"reason": "stale", "rows": 128, "steps": [3]},
    ]
    assert "replicated" not in told["warehouses"]["0"]


def test_a_warehouse_whose_rows_are_held_once_of_twice_is_told(events_of) -> None:
    events = events_of(steps=3)
    for event, replicated in zip(
        [e for e in events if e["kind"] == "dock"], [True, False, False], strict=True
    ):
        event["warehouses"][0] |= {"replicated": replicated, "times_alone": 1 - replicated}

    told = dock_tables(history_of(events))

    assert told is not None
    warehouse = told["warehouses"]["0"]
    assert (warehouse["replicated"], warehouse["times_alone"]) == (False, 1)
    assert warehouse["steps_alone"] == 2


def test_a_run_without_events_of_the_dock_has_no_panel_of_it(events_of) -> None:
    history = history_of([event for event in events_of(steps=5) if event["kind"] != "dock"])

    told = json.loads(json.dumps(document(history, "")))

    assert told["dock"] is None and told["dockRows"] == []
