"""Two candidates for one lease on a real API server."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from job_client import until

from rljob_operator.watch.lease import LeaderLease, LeaseTimes

TIMES = LeaseTimes(duration=15.0, deadline=10.0, retry=0.2)
"""A busy machine's pauses are shorter than the deadline: nobody gives up in between."""
SHORT = LeaseTimes(duration=2.0, deadline=1.5, retry=0.2)
"""For who waits until the other one gives up."""


class Line:
    """The way to the API server, which can be cut: then no answer comes."""

    def __init__(self, kube):
        self._kube, self.is_cut = kube, False

    def __getattr__(self, verb):
        async def call(*arguments):
            if self.is_cut:
                await asyncio.Event().wait()
            return await getattr(self._kube, verb)(*arguments)

        return call


@pytest.fixture
def candidate(kube, namespace):
    """`async with candidate("a") as (lease, task)`: one that tries to lead, then to keep leading."""

    @asynccontextmanager
    async def running(name, store=kube, times=TIMES):
        lease = LeaderLease(store, namespace=namespace, name="operator", me=name, times=times)
        task = asyncio.create_task(lease.run(elected=lambda: None, lost=lambda: None))
        try:
            yield lease, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return running


async def holder(kube, namespace):
    lease = await kube.get("coordination.k8s.io/v1", "Lease", namespace, "operator")
    return lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]


async def test_one_leads_and_the_other_follows_when_it_gives_back(kube, namespace, candidate):
    async with candidate("a") as (first, task):
        await until(first.is_leader)
        async with candidate("b") as (second, _):
            for _ in range(10):  # through several renewals
                await asyncio.sleep(0.1)
                assert (first.is_leader(), second.is_leader()) == (True, False)

            task.cancel()
            await until(second.is_leader)

            assert not first.is_leader()
            assert await holder(kube, namespace) == ("b", 1)


async def test_a_silent_leader_is_followed_only_after_it_has_given_up(kube, namespace, candidate):
    line = Line(kube)
    async with candidate("a", line, SHORT) as (first, _):
        await until(first.is_leader)
        async with candidate("b", times=SHORT) as (second, _):
            await asyncio.sleep(3 * SHORT.retry)  # it has seen the other's lease
            line.is_cut = True
            together = []

            def second_leads():
                together.append(first.is_leader() and second.is_leader())
                return second.is_leader()

            await until(second_leads)

            assert not any(together)
            assert await holder(kube, namespace) == ("b", 1)


async def test_of_two_that_start_at_once_one_leads(candidate):
    async with candidate("a") as (first, _), candidate("b") as (second, _):
        await until(lambda: first.is_leader() or second.is_leader())
        await asyncio.sleep(1.0)

        assert first.is_leader() != second.is_leader()
