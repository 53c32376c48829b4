"""How often Ray is asked about running jobs."""

import pytest

from rljob_operator.reconcile import poll_seconds


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 5), (250, 5), (1000, 20), (5000, 30)])
def test_many_jobs_are_asked_about_less_often_each(jobs, seconds):
    assert poll_seconds(jobs, chance=0.5) == seconds


def test_polls_are_spread_over_time():
    assert (poll_seconds(1, chance=0), poll_seconds(1, chance=1)) == (3.75, 6.25)
