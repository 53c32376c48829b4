"""Lists that fail: an API server that is away for a while ends nothing, a resource that is not there does."""

import asyncio
import contextlib

import pytest

from rljob_operator.errors import NotFound, Unavailable
from rljob_operator.watch.cache import Cache, JobKey
from rljob_operator.watch.resync import keep_in_step

JOB = {"metadata": {"namespace": "ns", "name": "job", "uid": "u", "resourceVersion": "1"}}


class Nobody:
    def add(self, key, *, new=False):
        pass


class BrokenKube:
    """Fails to list as often as it is told to."""

    def __init__(self, *failures):
        self.failures = list(failures)

    async def list(self, api_version, kind, namespace=None, *, labels=None, keep=dict):
        if self.failures:
            raise self.failures.pop(0)
        return [JOB] if kind == "RLJob" else []


async def paused(kube, times):
    """The pauses that `keep_in_step` makes, until it has made that many."""
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == times:
            raise asyncio.CancelledError

    cache = Cache()
    with contextlib.suppress(asyncio.CancelledError):
        await keep_in_step(kube, cache=cache, queue=Nobody(), sleep=sleep)
    return pauses, cache.jobs()


async def test_an_api_server_that_is_away_is_asked_again_soon_and_then_every_five_minutes():
    kube = BrokenKube(Unavailable("503"), Unavailable("429", retry_after=30.0))

    pauses, jobs = await paused(kube, 4)

    assert pauses == [5, 30, 300, 300]
    assert jobs == [JobKey("ns", "job")]


async def test_a_resource_that_is_not_installed_ends_the_process_and_says_where_it_comes_from():
    kube = BrokenKube(NotFound("list RayCluster of all namespaces: 404"))

    with pytest.raises(NotFound, match=r"list RayCluster.*RayCluster with KubeRay 1.6"):
        await paused(kube, 1)
