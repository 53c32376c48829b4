"""The operator dies again and again in the middle of a job's life, on a real API server with a real Ray API.

`tests/operator/test_killed_at_every_await.py` leaves no await out; this one leaves nothing simulated
between the operator and its servers.
"""

import asyncio
import random
import types
from collections.abc import Coroutine
from typing import Any

import aiohttp
from cluster_jobs import SETTINGS
from job_client import condition, phase

from rljob_operator.errors import Temporary
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_operator.watch.cache import Cache, JobKey
from rljob_operator.watch.resync import resync

NAME = "spell-backward"
KILLS = 12


class Killed(BaseException):
    """The process died here."""


class Ignoring:
    """A queue of which nothing is expected: the test makes the passes."""

    def add(self, key: JobKey, *, new: bool = False) -> None: ...
    def add_after(self, key: JobKey, seconds: float) -> None: ...


@types.coroutine
def dying(work: Coroutine[Any, Any, Any], steps: int) -> Any:
    """Await `work`, which is killed where it waits for the `steps`-th time."""
    for _ in range(steps):
        try:
            waited_for = work.send(None)
        except StopIteration:
            return
        yield waited_for
    work.throw(Killed())


async def test_a_job_of_an_operator_that_keeps_dying_has_one_driver_an_attempt(
    kube, ray, kuberay, jobs, make_job, namespace
):
    chance, kills = random.Random(1), 0
    await kube.create(make_job())
    async with aiohttp.ClientSession() as session:
        async with asyncio.timeout(60):
            while (job := await jobs.get()) is None or phase(job) != "Succeeded":
                operator = await new_operator(kube, ray, session, namespace)
                try:
                    steps = chance.randrange(1, 50) if kills < KILLS else 10_000
                    await dying(operator(JobKey(namespace, NAME)), steps)
                except Killed:
                    kills += 1
                except Temporary:
                    pass  # the queue tries again
                if kills == KILLS:
                    end_well(ray.of(namespace))
                assert len(ray.live(namespace)) <= 1

    assert kills == KILLS
    assert condition(job, "Succeeded")["status"] == "True"
    assert [d.status for d in ray.of(namespace)] == ["SUCCEEDED"]
    assert len(await jobs.names("ray.io/v1", "RayCluster")) == 1


async def new_operator(kube, ray, session, namespace):
    """A process that has just read everything and remembers nothing."""
    cache, queue = Cache(), Ignoring()
    await resync(kube, cache=cache, queue=queue, namespaces=[namespace])
    return Reconciler(
        kube=kube,
        cache=cache,
        queue=queue,
        session=session,
        metrics=Metrics(version="test"),
        settings=SETTINGS,
        head_url=ray.head_url,
    )


def end_well(drivers):
    for driver in drivers:
        driver.status = "SUCCEEDED"
