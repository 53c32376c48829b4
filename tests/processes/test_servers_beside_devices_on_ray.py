"""The dock's servers stand on the node of their devices, and go to another one when it is lost."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from wait_until import wait_until

from rljob_api.topology.ray_resources import EMULATED
from rljob_runtime.processes.on_ray import RayWorkers

pytestmark = pytest.mark.ray

NODE = {"num_cpus": 0, "object_store_memory": 2**27}
SERVERS = 8


class Server:
    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of two nodes without devices."""
    cluster = Cluster(
        initialize_head=True, connect=True, head_node_args={**NODE, "include_dashboard": False}
    )
    ray.cloudpickle.register_pickle_by_value(__import__(__name__))
    cluster.add_node(**NODE)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def servers(cluster: Cluster) -> tuple[Any, list[Any]]:
    """A node with a device, and servers that are started near it."""
    devices = cluster.add_node(**NODE, resources={EMULATED: 1})
    cluster.wait_for_nodes()
    workers = RayWorkers(per_node=1, resource=EMULATED)
    workers.reserve(1)
    near = workers.near(0)
    return devices, [workers.start(Server, home=near, restarts=True) for _ in range(SERVERS)]


def test_servers_stand_beside_their_devices(servers: tuple[Any, list[Any]]) -> None:
    devices, started = servers

    assert {server.node().result(60) for server in started} == {devices.node_id}


@pytest.mark.nightly
def test_servers_start_again_elsewhere_where_their_node_is_lost(
    cluster: Cluster, servers: tuple[Any, list[Any]]
) -> None:
    devices, started = servers
    assert {server.node().result(60) for server in started} == {devices.node_id}

    cluster.remove_node(devices)
    others = {node["NodeID"] for node in ray.nodes()} - {devices.node_id}

    def all_elsewhere() -> bool:
        calls = [server.node() for server in started]
        return all(call.exception(60) is None and call.result() in others for call in calls)

    wait_until("all servers are on other nodes", all_elsewhere)
