"""A run on a Ray of several nodes whose node with the device is lost: it goes on on the one that waits."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray_nodes import miss_nodes_soon, processes_of
from whole_runs import SMALL_JOB, finish, start, wait_for_event

from rljob_api.check.load import read_job
from rljob_api.topology.ray_resources import EMULATED
from rljob_operator.build.spares import idle_processes, warm_environment
from rljob_runtime.processes.warehouse_homes import WAREHOUSE_RESOURCE

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

NODE = {"object_store_memory": 2**27}
ACCELERATOR = {"type": "emulated", "devicesPerNode": 1, "spareNodes": 1}
WAIT_SECONDS = 120.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head with room for the warehouse and two nodes of a device each, set as the operator sets them."""
    miss_nodes_soon(monkeypatch)
    spec = read_job(SMALL_JOB | {"spec": SMALL_JOB["spec"] | {"accelerator": ACCELERATOR}}).spec
    for variable in warm_environment(spec):
        monkeypatch.setenv(variable["name"], variable["value"])
    head = {**NODE, "num_cpus": 0, "include_dashboard": False, "resources": {WAREHOUSE_RESOURCE: 1}}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(**NODE, num_cpus=idle_processes(spec), resources={EMULATED: 1})
    yield made
    ray.shutdown()
    made.shutdown()


def device_of(cluster: Cluster) -> list[tuple["ray._private.node.Node", psutil.Process]]:
    """Where the process of a device is."""
    return [
        (node, process)
        for node in cluster.worker_nodes
        for process in processes_of(node)
        if process.name().startswith("ray::DeviceWork")  # of at most 15 characters
    ]


def test_the_device_of_a_lost_node_goes_to_a_process_that_waited_for_it(
    job_file: Callable[..., Path], tmp_path: Path, cluster: Cluster
) -> None:
    job = job_file(steps=30, checkpoint={"every": 1}, accelerator=ACCELERATOR)
    folder = tmp_path / "run"
    process = start(job, folder, ray=True, environment={"RAY_ADDRESS": cluster.address})
    wait_for_event(folder, "step", 2, process)
    ((lost, _),) = device_of(cluster)
    (spare,) = cluster.worker_nodes - {lost}
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(process.name() == "ray::IDLE" for process in processes_of(spare)) < 6:
        assert time.monotonic() < deadline, f"only {processes_of(spare)} are there"
        time.sleep(0.1)

    died = time.time()
    cluster.remove_node(lost, allow_graceful=False)
    wait_for_event(folder, "recovery", 1, process)
    ((there, device),) = device_of(cluster)
    began = device.create_time()
    run = finish(process, folder)

    assert run.code == 0, run.output
    assert there is spare
    assert began < died
    (told,) = run.of_kind("recovery")
    assert (told["devices"], told["source"]) == ([0], "checkpoint")
    assert {event["step"] for event in run.of_kind("step")} == {*range(1, 31)}
