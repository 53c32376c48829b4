"""A run on a cluster starts only where every node has the driver's software."""

import importlib.metadata
from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from rljob_runtime.errors import VersionError
from rljob_runtime.processes import versions

NODE = {"num_cpus": 0, "object_store_memory": 2**27}
DRIVER = {"python": "3.12", "ray": "2.60.0", "rljob": "0.2.0"}


def test_every_difference_is_named_with_its_node() -> None:
    found = {
        "10.0.0.1": DRIVER,
        "10.0.0.2": DRIVER | {"rljob": "0.1.0"},
        "10.0.0.3": {"python": "3.12", "ray": "2.60.0"},
    }

    assert versions.differences(DRIVER, found) == [
        "node 10.0.0.2 has rljob 0.1.0, the driver 0.2.0",
        "node 10.0.0.3 has rljob missing, the driver 0.2.0",
    ]


@pytest.fixture(scope="module")
def made() -> Iterator[Cluster]:
    """A Ray cluster of one node without CPUs."""
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def cluster(made: Cluster) -> Iterator[Cluster]:
    """The same, to which nobody is connected, before or afterwards."""
    yield made
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.xdist_group("versions")
def test_nodes_are_asked_and_a_cluster_of_another_ray_is_refused_in_one_sentence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "__version__", "2.59.0")
    with pytest.raises(VersionError, match=r"Ray: 2\.60\.0 .*Ray: 2\.59\.0 .*; use one image"):
        versions.connect(address=cluster.address, log_to_driver=False)
    monkeypatch.undo()
    ray.shutdown()

    versions.connect(address=cluster.address, log_to_driver=False)
    versions.check_nodes()
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "9.9.9")
    with pytest.raises(VersionError, match=r"node \S+ has rljob \S+, the driver 9\.9\.9"):
        versions.check_nodes()


@pytest.mark.ray
@pytest.mark.xdist_group("versions")
def test_a_node_that_is_lost_while_it_is_asked_is_not_waited_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions.connect(address=cluster.address, log_to_driver=False)
    leaving = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    listed = ray.nodes()
    assert [node["Alive"] for node in listed] == [True, True]

    cluster.remove_node(leaving)
    answers = iter([listed])
    real = ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: next(answers, None) or real())
    versions.check_nodes()
