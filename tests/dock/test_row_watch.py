"""Rows by state over a step's time: bounded, however long the step, and taken step by step."""

import time

import pytest

from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.record.event_types import Rows, StateRows
from rljob_runtime.run.row_watch import MAX_POINTS, SHORTEST_SECONDS, RowCourse, RowWatch


def counts(ready: int = 0, acknowledged: int = 0) -> dict[str, RowCounts]:
    return {"reward": RowCounts(lacking=1, ready=ready, leased=2, acknowledged=acknowledged)}


def test_a_course_tells_what_was_seen_and_when_from_its_first_look() -> None:
    course = RowCourse()
    course.add(100.0, counts(ready=4, acknowledged=7))
    course.add(100.25, counts(ready=3, acknowledged=9))

    told = course.take()

    rows = StateRows(lacking=[1, 1], ready=[4, 3], leased=[2, 2], done=[0, 2])
    assert told == Rows(start=100.0, seconds=[0.0, 0.25], states={"reward": rows})


def test_a_step_begins_with_the_last_look_of_the_one_before() -> None:
    course = RowCourse()
    course.add(100.0, counts())
    course.add(101.0, counts(ready=5, acknowledged=3))
    course.take()
    course.add(102.0, counts(acknowledged=8))

    told = course.take()

    assert (told.start, told.seconds) == (101.0, [0.0, 1.0])
    assert told.states["reward"].ready == [5, 0]
    assert told.states["reward"].done == [0, 5]


def test_a_controller_that_started_anew_counts_from_nothing() -> None:
    course = RowCourse()
    for second, acknowledged in enumerate((50, 60, 4)):
        course.add(float(second), counts(acknowledged=acknowledged))

    assert course.take().states["reward"].done == [0, 10, 4]


@pytest.mark.parametrize("seconds", [3, 60, 3600])
def test_a_step_of_any_length_has_a_bounded_number_of_points_over_all_of_it(seconds: int) -> None:
    course = RowCourse()
    now = 0.0
    while now < seconds:
        course.add(now, counts())
        now += course.pause

    told = course.take()

    assert MAX_POINTS / 2 - 1 <= len(told.seconds) <= MAX_POINTS
    assert told.seconds[0] == 0.0
    assert told.seconds[-1] >= seconds - 2 * course.pause


def test_looks_come_more_often_again_once_steps_are_short() -> None:
    course = RowCourse(pause=6.4)

    for _ in range(10):
        course.take()

    assert course.pause == SHORTEST_SECONDS
    assert course.take() is None


def test_a_watch_sees_the_dock_and_outlives_a_server_that_is_gone(make_dock, rows_of) -> None:
    dock = make_dock()
    looks: list[dict[str, RowCounts]] = []
    dock.client("feed").put_rows("t", rows_of("t", groups=2, samples=2), total=4)

    with RowWatch(dock.address, looks.append) as watch:  # type: ignore[arg-type]
        deadline = time.monotonic() + 10
        while not looks and time.monotonic() < deadline:
            time.sleep(0.02)
        dock.threads[-1].stop()
        told = watch.take()

    assert looks[0]["generate"] == RowCounts(lacking=0, ready=4, leased=0, acknowledged=0)
    assert told.states["generate"].ready[0] == 4
    assert set(told.states) == {"generate", "reward", "update"}
