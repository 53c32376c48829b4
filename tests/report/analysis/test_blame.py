"""What a step waits for at each moment, by hand."""

import pytest

from rljob_runtime.record.spans import StageSpan
from rljob_runtime.report.analysis.blame import Activity, blame_by_state


def activity(*spans: tuple[float, float], waited: float = 0.0) -> Activity:
    return Activity(spans=tuple(StageSpan(start=a, end=b) for a, b in spans), waited=waited)


def test_stages_one_after_the_other_have_their_own_time_and_pauses_are_nobodys():
    activities = {
        "generate": activity((0, 4)),
        "reward": activity((4, 6)),
        "update": activity((7, 9)),
        "sync": activity((9, 10)),
    }

    found = blame_by_state(activities, StageSpan(start=0, end=10))

    assert found == {"generate": 4, "reward": 2, "update": 2, "sync": 1}


def test_the_reward_is_blamed_where_the_update_waits_for_it():
    activities = {
        "generate": activity((0, 1)),
        "reward": activity((1, 6)),
        "update": activity((2, 7), waited=4),
    }

    found = blame_by_state(activities, StageSpan(start=0, end=7))

    assert found == pytest.approx({"generate": 1, "reward": 1 + 4, "update": 1})


def test_an_update_that_never_waits_is_blamed_although_others_work_beside_it():
    activities = {
        "generate": activity((0, 9)),
        "reward": activity((0, 9), waited=8),
        "update": activity((0, 10)),
    }

    assert blame_by_state(activities, StageSpan(start=0, end=10)) == {"update": 10}


def test_a_wait_is_passed_on_to_what_the_awaited_state_waits_for_itself():
    activities = {
        "generate": activity((0, 10)),
        "reward": activity((0, 10), waited=10),
        "update": activity((0, 10), waited=10),
    }

    found = blame_by_state(activities, StageSpan(start=0, end=10))

    assert found["generate"] == pytest.approx(10)
    assert found["reward"] == found["update"] == pytest.approx(0)


def test_of_two_scores_that_are_made_at_the_same_time_the_later_one_is_waited_for():
    activities = {
        "generate": activity((0, 2)),
        "reference": activity((2, 3)),
        "reward": activity((2, 6)),
        "update": activity((6, 8)),
    }

    found = blame_by_state(activities, StageSpan(start=0, end=8))

    assert found == {"generate": 2, "reward": 4, "update": 2}


def test_what_ran_before_and_after_the_window_counts_within_it_alone():
    activities = {"generate": activity((-5, 3), (9, 20)), "update": activity((3, 9))}

    found = blame_by_state(activities, StageSpan(start=0, end=10))

    assert found == {"generate": 3 + 1, "update": 6}
