"""What a step took, from events whose every second is known (`conftest.made_events`)."""

import json

import pytest
from run_events import history_of

from rljob_runtime.record.events import read_events
from rljob_runtime.report.analysis.run import analyze_run
from rljob_runtime.report.analysis.step_figures import median_figures, step_figures
from rljob_runtime.report.display.history import RunHistory


def lines_of(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def figures(folder, step=2):
    return step_figures(RunHistory.of(read_events(folder / "events.jsonl")), step)


def test_the_parts_of_a_step_add_up_to_it(run_folder):
    found = figures(run_folder(4))

    assert found.seconds == 10
    assert sum(found.blame.values()) == pytest.approx(10)
    assert found.blame == pytest.approx(
        {
            "generate": 2.0,
            "tail": 1.0,
            "reward": 3.0,
            "update": 2.5,
            "reshard": 1.0,
            "other": 0.5,
            "inference": 0.0,
            "dock": 0.0,
        }
    )


def test_work_is_without_waits_and_waits_before_the_first_row_do_not_count(run_folder):
    found = figures(run_folder(4))

    assert found.busy == pytest.approx({"generate": 4, "reward": 3, "update": 2.5, "sync": 1})
    assert found.half_seconds == pytest.approx(
        1.25
    )  # 20 of 40 samples: a quarter of the second second
    assert found.tail == pytest.approx(2.0)


def test_lengths_and_passes_are_the_steps_own(run_folder):
    found = figures(run_folder(4))

    assert found.lengths == {"mean": 20, "p80": 24, "max": 44}
    assert (found.num_passes, found.passes) == (2, ((100, 0.5), (200, 0.8)))


def test_a_step_without_events_of_the_dock_has_no_tail(run_folder):
    folder = run_folder(4)
    events = [e for e in lines_of(folder) if e["kind"] != "dock"]

    found = step_figures(history_of(events), 2)

    assert (found.blame["generate"], found.blame["tail"]) == (3, 0)


def test_waits_for_room_are_the_docks(run_folder):
    folder = run_folder(4)
    events = lines_of(folder)
    for event in events:
        if event["kind"] == "dock":
            event["states"]["generate"] = {"wait_seconds": 0.0, "waits": {"room": 1.5}}

    found = step_figures(history_of(events), 2)

    assert (found.blame["generate"], found.blame["dock"]) == pytest.approx((0.5, 1.5))


def test_a_typical_step_is_the_median(run_folder):
    steps = [figures(run_folder(6), step) for step in (2, 3, 4)]

    assert median_figures(steps).blame == pytest.approx(steps[0].blame)
    assert len(median_figures(steps).passes) == 6


def test_the_first_step_is_left_out(run_folder):
    assert analyze_run(run_folder(5)).steps == (2, 5)


def test_workers_that_train_wait_for_the_one_that_still_generates(run_folder):
    folder = run_folder(4)
    events = lines_of(folder)
    before = figures(folder)
    early = [dict(e, start=e["start"] - 2, device=1) for e in events if e.get("name") == "update"]
    for event in events:
        if event["kind"] == "dock":  # 3.5 s before its first rows, and half a second after
            event["states"]["update"]["wait_seconds"] += 3.5 + 0.5

    found = step_figures(history_of([*events, *early]), 2)

    assert found.blame == pytest.approx(before.blame)
    assert found.busy == pytest.approx(before.busy)
