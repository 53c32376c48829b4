"""The leader's lease: one leader at a time, whatever the network does."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from virtual_time import VirtualTime, settle

from rljob_operator.errors import Conflict, NotFound, Unavailable
from rljob_operator.watch.lease import LeaderLease, Sighting, decide, sighting_after


class Server:
    """One lease, with the API server's rules for creating and replacing."""

    def __init__(self):
        self.lease, self.version, self.broken, self.hanging = None, 0, set(), set()

    def client(self, who):
        return Client(self, who)


class Client:
    def __init__(self, server, who):
        self.server, self.who = server, who

    async def _connected(self):
        if self.who in self.server.broken:
            raise Unavailable("503")
        if self.who in self.server.hanging:
            await asyncio.Event().wait()

    async def get(self, api_version, kind, namespace, name):
        await self._connected()
        if self.server.lease is None:
            raise NotFound(name)
        return self.server.lease

    async def create(self, manifest):
        await self._connected()
        if self.server.lease is not None:
            raise Conflict("exists")
        return self._store(manifest)

    async def replace(self, manifest):
        await self._connected()
        if manifest["metadata"].get("resourceVersion") != str(self.server.version):
            raise Conflict("changed")
        return self._store(manifest)

    def _store(self, manifest):
        self.server.version += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.server.version)}
        self.server.lease = {**manifest, "metadata": metadata}
        return self.server.lease


class Candidate:
    """A replica: its lease, its task and what it was told. skew: seconds by which its clock is wrong."""

    def __init__(self, server, time, me, *, skew=0.0):
        wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.told = []
        self.lease = LeaderLease(
            server.client(me),
            namespace="system",
            name="rljob-operator",
            me=me,
            clock=lambda: time.now + skew,
            sleep=time.sleep,
            wall=lambda: wall + timedelta(seconds=time.now + skew),
        )
        self.task = asyncio.create_task(
            self.lease.run(
                elected=lambda: self.told.append(("elected", time.now)),
                lost=lambda: self.told.append(("lost", time.now)),
            )
        )

    async def end(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def pair():
    """Two candidates; the first has been leader for a minute, the second's clock is 100 s ahead."""
    server, time = Server(), VirtualTime(0)
    first = Candidate(server, time, "first")
    await settle()
    second = Candidate(server, time, "second", skew=100.0)
    await time.advance(60)
    yield server, time, first, second
    await first.end()
    await second.end()


async def test_of_two_candidates_one_leads_and_the_other_waits_however_wrong_its_clock_is(pair):
    server, _, first, second = pair

    assert first.told == [("elected", 0)]
    assert second.told == []
    assert (first.lease.is_leader(), second.lease.is_leader()) == (True, False)
    assert server.lease["spec"]["holderIdentity"] == "first"
    assert server.lease["spec"]["leaseTransitions"] == 0
    assert server.lease["spec"]["renewTime"] == "2026-01-01T00:01:00.000000Z"


@pytest.mark.parametrize("fault", ["broken", "hanging"])
async def test_a_leader_that_cannot_renew_gives_up_before_another_takes_over(pair, fault):
    server, time, first, second = pair

    getattr(server, fault).add("first")
    await time.advance(60)

    (_, lost_at), (_, elected_at) = first.told[1], second.told[0]
    assert lost_at == 70  # ten seconds after the last renewal
    assert 75 <= elected_at <= 77
    assert not first.lease.is_leader()
    assert second.lease.is_leader()
    assert first.task.done()
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_short_break_costs_no_leadership(pair):
    server, time, first, second = pair

    server.broken.add("first")
    await time.advance(7)
    server.broken.clear()
    await time.advance(60)

    assert first.told == [("elected", 0)]
    assert second.told == []


async def test_a_leader_that_ends_gives_the_lease_back_at_once(pair):
    _, time, first, second = pair

    await first.end()
    await time.advance(3)

    assert first.told[-1] == ("lost", 60)
    assert second.told[0][0] == "elected"
    assert second.told[0][1] <= 62


async def test_a_lease_that_another_took_is_lost_at_once(pair):
    server, time, first, _ = pair

    await server.client("thief").replace(
        {**server.lease, "spec": {**server.lease["spec"], "holderIdentity": "thief"}}
    )
    await time.advance(2)

    assert first.told[-1] == ("lost", 62)


async def test_a_change_that_leaves_the_holder_alone_costs_one_try(pair):
    server, time, first, _ = pair

    await server.client("somebody").replace({**server.lease, "extra": 1})
    await time.advance(30)

    assert first.told == [("elected", 0)]


def test_an_unchanged_lease_keeps_its_age_and_a_renewed_one_is_young():
    old = Sighting({"holderIdentity": "x", "renewTime": "1"}, 5.0)

    assert sighting_after(old, {"holderIdentity": "x", "renewTime": "1"}, 9.0).since == 5.0
    assert sighting_after(old, {"holderIdentity": "x", "renewTime": "2"}, 9.0).since == 9.0


@pytest.mark.parametrize(
    ("spec", "age", "decision"),
    [
        ({"holderIdentity": "me", "leaseDurationSeconds": 15}, 99, "renew"),
        ({"holderIdentity": "", "leaseDurationSeconds": 1}, 0, "take"),
        ({}, 0, "take"),
        ({"holderIdentity": "x", "leaseDurationSeconds": 15}, 14.9, "wait"),
        ({"holderIdentity": "x", "leaseDurationSeconds": 15}, 15, "take"),
    ],
)
def test_the_decision_follows_from_holder_and_age(spec, age, decision):
    assert decide(Sighting(spec, 100.0), "me", 100.0 + age) == decision


def test_without_a_lease_one_is_created():
    assert decide(None, "me", 0.0) == "create"
