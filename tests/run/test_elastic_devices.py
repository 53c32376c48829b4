"""Rollout devices that come, go and fail, as the driver handles them between its steps.

The devices are stand-ins without a model, on a real Ray; what fails is written in their seat's plan.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from whole_runs import SMALL_JOB

from rljob_api.elastic import DevicePlace
from rljob_api.load import read_job
from rljob_api.ray_resources import EMULATED
from rljob_runtime.actors.device import Seat
from rljob_runtime.calls import answers
from rljob_runtime.casualties import dead_devices
from rljob_runtime.device_pool import DevicePool
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.ports import HeldPorts
from rljob_runtime.elastic import Elastic
from rljob_runtime.errors import WeightsError
from rljob_runtime.events import EventLog, read_events
from rljob_runtime.local_ray import start_ray
from rljob_runtime.placement import Cast, Member
from rljob_runtime.processes.on_ray import RayWorkers
from rljob_runtime.scale_desk import ScaleDesk
from rljob_runtime.seats import make_seats, prepare

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("elastic-devices")]  # one Ray for all

DEVICES = 5
Plan = dict[int, str]


class StandIn:
    """A device worker that does as its plan says: fail or die while it starts or joins."""

    def __init__(self, plan: Plan, seat: Seat, num_threads: int) -> None:
        self.group: tuple[str, int, int] | None = None
        self._does, self._rank = plan.get(seat.rank), seat.rank

    def address(self) -> str:
        return "10.0.0.1"

    def open_world(self, *present: str) -> str:
        return f"world of {len(present)} with device {self._rank}"

    def prepare(self, meeting: str | None) -> DevicePlace:
        self.world = meeting
        if self._does == "fails to load":
            raise WeightsError("no such weights")
        if self._does == "dies":
            os._exit(1)
        if self._does == "is slow":
            time.sleep(600)
        return DevicePlace(device=self._rank, host=f"host-{self._rank}", address="10.0.0.1")

    def open_sync(self) -> str:
        return f"meeting-{time.monotonic_ns()}"

    def join_sync(self, address: str, rank: int, size: int) -> None:
        if self._does == "dies when it joins":
            os._exit(1)
        self.group = (address, rank, size)

    def met_at(self) -> str | None:
        return self.world

    def synced(self) -> tuple[str, int, int] | None:
        return self.group


class Run:
    """One device that trains and as many that generate as share a model; steps pass by `step`."""

    def __init__(
        self, folder: Path, plan: Plan, *, per_node: int = 1, prompts: int = 8, together: int = 1
    ) -> None:
        job = json.loads(json.dumps(SMALL_JOB))
        job["spec"]["accelerator"] = {"devicesPerNode": per_node}
        job["spec"]["batch"]["globalBatchSize"] = prompts
        placement = {"mode": "separated", "updateDevices": 1, "rolloutDevices": together}
        job["spec"]["rollout"] = {"parallelism": {"tensor": together}}
        job["spec"]["placement"] = placement
        self.job = read_job(job)
        self.pool = DevicePool(
            workers=RayWorkers(per_node=per_node, resource=EMULATED),
            per_node=per_node,
            kind=StandIn,
            arguments=((plan,), 1),
        )
        self.pool.reserve((1 + together) // per_node)
        self.log = EventLog(folder / "events.jsonl")
        self.desk = ScaleDesk(self.job)
        self.cast = Cast(
            members=self._members(),
            pool=self.pool,
            feeder=None,
            rewards=[],
            warehouses=[],
            controllers={},
            dock=DockAddress(token="", warehouses=(), controllers={}),
            ports=HeldPorts(0),
        )
        self.cast.meet()
        self.synced: list[list[int]] = []
        self.elastic = Elastic(
            job=self.job,
            cast=self.cast,
            desk=self.desk,
            log=self.log,
            sync=lambda: self.synced.append(self.group()),
            joined=lambda: None,
        )
        self.steps = 0

    def _members(self) -> list[Member]:
        seats = make_seats(self.job)
        workers = [self.pool.hire(seat) for seat in seats]
        places = answers("device", prepare(workers, seats))
        return [
            Member(seat=seat, worker=worker, place=place)
            for seat, worker, place in zip(seats, workers, places, strict=True)
        ]

    def group(self) -> list[int]:
        """Devices that are in one group for weights, by their place in it; all must agree."""
        found = {
            member.seat.rank: member.worker.synced().result(60) for member in self.cast.members
        }
        assert len({group[0] for group in found.values()}) == 1
        assert {group[2] for group in found.values()} == {len(found)}
        return sorted(found, key=lambda rank: found[rank][1])

    def step(self) -> None:
        """A step, and what lies between it and the next one."""
        self.elastic.look()
        self.steps += 1
        self.elastic.apply(self.steps)

    def step_until(self, done: Callable[[], bool]) -> None:
        """Steps until it is so."""
        deadline = time.monotonic() + 300
        while not done():
            assert time.monotonic() < deadline, self.desk.report()
            self.step()
            time.sleep(0.05)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.log.path) if event["kind"] == kind]


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    """Ray with five devices, in this process."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find it
    start_ray(
        num_cpus=4, resources={EMULATED: DEVICES}, object_store_memory=100 * 2**20,
        log_to_driver=False, logging_level="error",
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """begin({2: "dies"}): a run whose device 2 dies when it starts."""
    runs = []

    def start(plan: Plan | None = None, **sizes: int) -> Run:
        runs.append(Run(tmp_path, plan or {}, **sizes))
        return runs[-1]

    yield start
    for started in runs:
        started.log.close()
        seats = [(m.worker, m.seat) for m in started.cast.members]
        for joiner in started.elastic.joiners.coming.values():
            seats += zip(joiner.workers, joiner.seats, strict=True)
        for worker, seat in seats:
            started.pool.dismiss(worker, seat, staying=set())


def free_devices() -> float:
    return ray.available_resources().get(EMULATED, 0)


def test_a_device_joins_between_two_steps_and_leaves_between_two_others(begin) -> None:
    run = begin()

    run.desk.ask(2)
    run.elastic.look()
    joining = run.desk.report()
    run.step_until(lambda: run.desk.report().ready == 2)
    grown, group, free = run.desk.report(), run.group(), free_devices()
    run.desk.ask(1)
    draining = run.desk.report().draining
    run.step()

    assert (joining.wanted, joining.ready, joining.joining) == (2, 1, 1)
    assert (grown.joining, grown.hosts) == (0, ["host-0", "host-1", "host-2"])
    assert group == [0, 1, 2]
    assert run.synced == [[0, 1, 2]]  # the weights go to who joined; who stays has them
    assert [place.device for place in draining] == [2]
    assert run.group() == [0, 1]
    assert run.desk.report().hosts == ["host-0", "host-1"]
    events = run.events("resize")
    assert [(e["from"], e["to"], e["given_up"]) for e in events] == [(1, 2, 0), (2, 1, 0)]
    assert events[1]["step"] == run.steps
    run.step_until(lambda: free_devices() == free + 1)


def wait_for_death(worker) -> None:
    """Ray kills in its own time."""
    deadline = time.monotonic() + 60
    with pytest.raises(ray.exceptions.RayActorError):
        while time.monotonic() < deadline:
            ray.get(worker.actor.__ray_ready__.remote(), timeout=60)


def test_a_failed_run_names_the_devices_whose_processes_died(begin) -> None:
    run = begin()
    before = dead_devices(run.cast)

    run.pool.workers.end(run.cast.members[1].worker)
    wait_for_death(run.cast.members[1].worker)

    assert (before, dead_devices(run.cast)) == ("", "device 1 (host-1) died")


def test_all_devices_of_a_node_may_leave_at_once(begin) -> None:
    run = begin(per_node=2, prompts=12)

    run.desk.ask(3)
    run.step_until(lambda: run.desk.report().ready == 3)
    nodes = sorted(run.pool.nodes)
    run.desk.ask(1)
    run.step()

    assert nodes == [0, 1]
    assert sorted(run.pool.nodes) == [0]
    assert run.group() == [0, 1]


def test_steps_go_on_while_ray_has_no_place(begin) -> None:
    run = begin(prompts=10)

    run.desk.ask(10)
    run.step_until(lambda: run.desk.report().ready == 2)  # 10 prompts are not for 3 or 4 devices
    waiting = run.desk.report()
    run.desk.ask(2)
    run.step()

    assert (waiting.wanted, waiting.ready, waiting.joining) == (10, 2, 8)
    assert run.desk.report().joining == 0
    assert (len(run.group()), run.group()[:2]) == (3, [0, 1])  # and whom Ray placed first
    assert sorted(run.pool.nodes) == run.group()


def test_devices_that_share_a_model_come_and_go_together(begin) -> None:
    run = begin(together=2)
    before = free_devices()

    run.desk.ask(4)
    run.step_until(lambda: run.desk.report().ready == 4)
    met = [member.worker.met_at().result(60) for member in run.cast.members]
    run.desk.ask(2)
    run.step()

    assert met == [None, *["world of 2 with device 1"] * 2, *["world of 2 with device 3"] * 2]
    assert run.group() == [0, 1, 2]
    events = run.events("resize")
    assert [(event["from"], event["to"]) for event in events] == [(2, 4), (4, 2)]
    run.step_until(lambda: free_devices() == before)


def test_a_model_whose_devices_do_not_all_come_is_given_up_whole(begin) -> None:
    run = begin({4: "fails to load"}, together=2)
    before = free_devices()

    run.desk.ask(4)
    run.step_until(lambda: bool(run.desk.report().message))

    assert (run.desk.report().ready, run.desk.report().joining) == (2, 0)
    warnings = [event["message"] for event in run.events("warning")]
    assert len(warnings) == 3
    assert all("rollout devices 3 and 4 did not join" in message for message in warnings)
    assert run.group() == [0, 1, 2]
    run.step_until(lambda: free_devices() == before)


@pytest.mark.parametrize(
    ("failure", "told"),
    [("dies", "Died"), ("fails to load", "no such weights"), ("dies when it joins", "Died")],
)
def test_a_device_that_fails_on_its_way_in_is_tried_three_times_and_given_up(
    begin, failure: str, told: str
) -> None:
    run = begin({2: failure})

    run.desk.ask(2)
    run.step_until(lambda: bool(run.desk.report().message))
    report = run.desk.report()

    assert (report.wanted, report.ready, report.joining) == (2, 1, 0)
    assert report.message == "3 devices failed to join; see the warnings"
    assert run.group() == [0, 1]
    warnings = [event["message"] for event in run.events("warning")]
    assert len(warnings) == 3
    assert all(told in message for message in warnings)
    assert run.events("resize") == []


def test_asking_again_tries_again(begin) -> None:
    run = begin({2: "fails to load"})
    run.desk.ask(2)
    run.step_until(lambda: bool(run.desk.report().message))
    run.pool.arguments = (({},), 1)  # whatever was wrong is mended

    run.desk.ask(2)
    run.step_until(lambda: run.desk.report().ready == 2)

    assert run.desk.report().message == ""
    assert run.events("resize")[-1]["given_up"] == 0


def test_a_device_that_never_gets_ready_is_given_up_at_the_deadline(begin) -> None:
    run = begin({2: "is slow"})
    now = 0.0
    run.elastic.joiners.clock = lambda: now

    run.desk.ask(2)
    run.step()
    (joiner,) = run.elastic.joiners.coming.values()
    run.step_until(lambda: joiner.started == 0)
    now = 601.0
    run.step()

    assert "was not ready 600 s after it had its place" in run.events("warning")[0]["message"]
    assert run.desk.report().joining == 1  # tried again
