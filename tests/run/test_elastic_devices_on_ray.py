"""Rollout devices that come, go and fail as actors of a real Ray. `test_elastic_devices` has the rest."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
import stand_in_devices
import workers_here
from stand_in_devices import Plan, Run, StandInProcess
from wait_until import wait_until

from rljob_api.topology.ray_resources import EMULATED
from rljob_runtime.processes.dead_devices import dead_devices
from rljob_runtime.processes.local_ray import start_ray
from rljob_runtime.processes.on_ray import RayWorkers

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("elastic-devices")]  # one Ray for all

DEVICES = 4


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    """Ray with four devices, in this process."""
    for module in (stand_in_devices, workers_here):  # workers do not find them
        ray.cloudpickle.register_pickle_by_value(module)
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
        def workers(per_node: int) -> RayWorkers:
            return RayWorkers(per_node=per_node, resource=EMULATED)

        runs.append(Run(tmp_path, plan or {}, workers=workers, kind=StandInProcess, **sizes))
        return runs[-1]

    yield start
    for started in runs:
        started.end()


def test_a_node_moves_where_another_one_is_free_and_keeps_the_one_that_it_left() -> None:
    workers = RayWorkers(per_node=2, resource=EMULATED)
    workers.reserve(1)
    made = [workers.groups[0]]
    try:
        assert workers.move(0)
        made.append(workers.groups[0])
        assert made[1].id != made[0].id
        wait_until("two nodes hold all devices", lambda: free_devices() == DEVICES - 4)
        assert not workers.move(0)
        assert workers.groups[0] is made[1]
    finally:  # the next tests want the devices
        for group in made:
            ray.util.remove_placement_group(group)
    wait_until("all devices are free", lambda: free_devices() == DEVICES)


def free_devices() -> float:
    """As far as this process has been told."""
    return ray.available_resources().get(EMULATED, 0)


def test_a_device_joins_between_two_steps_and_leaves_between_two_others(begin) -> None:
    run = begin()

    run.requests.ask(2)
    run.elastic.poll()
    joining = run.requests.report()
    run.step_until(lambda: run.requests.report().ready == 2)
    grown, group = run.requests.report(), run.group()
    run.requests.ask(1)
    draining = run.requests.report().draining
    run.step()

    assert (joining.wanted, joining.ready, joining.joining) == (2, 1, 1)
    assert (grown.joining, grown.hosts) == (0, ["host-0", "host-1", "host-2"])
    assert group == [0, 1, 2]
    assert run.synced == [[0, 1, 2]]  # the weights go to who joined; who stays has them
    assert [place.device for place in draining] == [2]
    assert run.group() == [0, 1]
    assert run.requests.report().hosts == ["host-0", "host-1"]
    events = run.events("resize")
    assert [(e["from"], e["to"], e["given_up"]) for e in events] == [(1, 2, 0), (2, 1, 0)]
    assert events[1]["step"] == run.steps
    run.step_until(lambda: free_devices() == DEVICES - 2)


def wait_for_death(worker) -> None:
    """Ray kills in its own time."""
    deadline = time.monotonic() + 60
    with pytest.raises(ray.exceptions.RayActorError):
        while time.monotonic() < deadline:
            ray.get(worker.actor.__ray_ready__.remote(), timeout=60)


def test_a_failed_run_names_the_devices_whose_processes_died(begin) -> None:
    run = begin()
    before = dead_devices(run.actors)

    run.pool.workers.end(run.actors.members[1].worker)
    wait_for_death(run.actors.members[1].worker)

    assert (before, dead_devices(run.actors)) == ("", "device 1 (host-1) died")


def test_steps_go_on_while_ray_has_no_place(begin) -> None:
    run = begin()

    run.requests.ask(4)
    run.step_until(lambda: run.requests.report().ready == 2)  # 8 prompts are not for 3
    waiting = run.requests.report()
    run.requests.ask(1)
    run.step()

    assert (waiting.wanted, waiting.ready, waiting.joining) == (4, 2, 2)
    assert run.requests.report().joining == 0
    assert len(run.group()) == 2


def test_a_device_that_dies_on_its_way_in_is_tried_again_and_given_up(begin) -> None:
    run = begin({2: "dies"})

    run.requests.ask(2)
    run.step_until(lambda: bool(run.requests.report().message))

    assert run.requests.report().message == "3 devices failed to join; see the warnings"
    assert run.group() == [0, 1]
    assert all("Died" in event["message"] for event in run.events("warning"))
