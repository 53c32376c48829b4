"""How often Ray is asked about running jobs, and what follows when it does not answer."""

import pytest
from memory_world import KEY, MemoryKube, World, make_operator

from rljob_operator.decide.draft import condition
from rljob_operator.reconcile.observe import status_of
from rljob_operator.reconcile.reconcile import poll_seconds


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 5), (250, 5), (1000, 20), (5000, 30)])
def test_many_jobs_are_asked_about_less_often_each(jobs, seconds):
    assert poll_seconds(jobs, chance=0.5) == seconds


def test_polls_are_spread_over_time():
    assert (poll_seconds(1, chance=0), poll_seconds(1, chance=1)) == (3.75, 6.25)


async def test_a_head_is_called_silent_after_fifteen_seconds_without_an_answer():
    kube, world = MemoryKube(), World({"steps": 4}, lose_answers=0)
    kube.door.api = world.api
    operator = make_operator(world, kube, {})
    reasons = []

    for answers in (True, True, True, True, False, False, True, False, False, False, False):
        world.goes_on()
        world.ray.answers = answers
        operator.cache = world.cache()
        await operator(KEY)
        ready = condition(status_of(world.job), "ClusterReady")
        reasons.append(ready.reason)

    assert reasons == ["PodsNotReady"] + ["PodsReady"] * 9 + ["HeadSilent"]
