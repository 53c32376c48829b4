"""A run on a Ray of several nodes whose first one is lost with a device that trains, and comes back."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from ray_nodes import miss_nodes_soon, processes_of
from whole_runs import finish, start, steps_done, wait_for_event

from rljob_api.topology.ray_resources import EMULATED

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

NODE = {"object_store_memory": 2**27, "num_cpus": 1, "resources": {EMULATED: 1}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head without devices and three nodes of one each."""
    miss_nodes_soon(monkeypatch)
    head = {"object_store_memory": 2**27, "num_cpus": 0, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(3):
        made.add_node(**NODE)
    yield made
    ray.shutdown()
    made.shutdown()


def first_of(cluster: Cluster) -> "ray._private.node.Node":
    """The node of device 0, where the run's other processes are, too."""
    (home,) = {
        node
        for node in cluster.worker_nodes
        for process in processes_of(node)
        if process.name().startswith("ray::PromptFeed")  # of at most 15 characters
    }
    return home


def attempts_to_place(cluster: Cluster) -> list[int]:
    """Of each reservation that waits for a node, by Ray's server."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    groups = placement_group_table().values()
    ray.shutdown()
    waiting = [group for group in groups if group["state"] not in ("CREATED", "REMOVED")]
    return [group["stats"]["scheduling_attempt"] for group in waiting]


def test_training_goes_on_without_the_node_and_with_another_one_in_its_place(
    job_file: Callable[..., Path], tmp_path: Path, cluster: Cluster
) -> None:
    job = job_file(
        steps=2000,
        checkpoint={"every": 2000},
        accelerator={"type": "emulated", "devicesPerNode": 1},
        placement={"mode": "separated", "updateDevices": 2, "rolloutDevices": 1},
        elastic={"update": {"minReplicas": 1}},
    )
    folder = tmp_path / "run"
    process = start(job, folder, ray=True, environment={"RAY_ADDRESS": cluster.address})
    wait_for_event(folder, "step", 2, process)

    cluster.remove_node(first_of(cluster), allow_graceful=False)
    wait_for_event(folder, "replicas", 2, process)
    done = steps_done(folder)
    wait_for_event(folder, "step", done + 2, process)
    attempts = attempts_to_place(cluster)
    cluster.add_node(**NODE)
    wait_for_event(folder, "replicas", 3, process)
    done = steps_done(folder)
    wait_for_event(folder, "step", done + 2, process)
    process.send_signal(signal.SIGINT)
    run = finish(process, folder)

    assert run.code == 3, run.output  # interrupted, behind a checkpoint
    (tried,) = attempts
    assert tried < 1000  # with pauses: without, a million times a minute
    told = [(event["live"], event["left_out"]) for event in run.of_kind("replicas")]
    assert told == [(2, []), (1, [0]), (2, [])]
    recoveries = run.of_kind("recovery")  # one, or another one for who was seen to die later
    assert [each["source"] for each in recoveries if each["devices"] == [0]] == ["peers"]
    assert {name for each in recoveries for name in each["others"]} == {"feeder", "reward-0"}
    steps = [event["step"] for event in run.of_kind("step")]
    assert set(steps) == {*range(1, max(steps) + 1)}
