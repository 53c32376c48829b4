"""The dock between pods: in a node through shared memory and over TCP, and between nodes.

One job whose rows are held twice; at the end its warehouses are killed, by turns, while it trains, and then
one of its devices is stopped.
"""

import json
from typing import Any

import pytest
from support.cluster import Cluster, Manifest
from support.jobs import (
    STARTED_SECONDS,
    actors_of,
    condition,
    ended,
    events_of,
    holds,
    small,
    step,
    wait_for_another_warehouse,
)

JOB = "rows"
PORT = 29100
PROBE = "python -m rljob_runtime.dock.probe"
AGAIN_SECONDS = 180.0
KILL_WAREHOUSE = """for p in /proc/[0-9]*; do
grep -qsa 'Warehous[e]Actor' $p/cmdline && kill -9 ${p#/proc/} && echo killed; done"""
"""The brackets keep the pattern from finding this script itself."""
STOP_DEVICE = """for p in /proc/[0-9]*; do
grep -qsa 'DeviceWorke[r]' $p/cmdline && kill -STOP ${p#/proc/} && echo stopped; done"""


@pytest.fixture(scope="module")
def by_node(cluster: Cluster) -> dict[str, dict[str, Manifest]]:
    """Worker and warehouse pod of each node; the first node's warehouse pod serves a dock of its own."""
    cluster.apply(small(JOB, nodes=2, steps=5000, dock={"replicas": 2}))
    cluster.wait_for_job(
        JOB, "its pods are there", lambda job: holds(job, "ClusterReady"), seconds=STARTED_SECONDS
    )
    found: dict[str, dict[str, Manifest]] = {}
    for role in ("worker", "warehouse"):
        for pod in cluster.pods(JOB, role):
            found.setdefault(pod["spec"]["nodeName"], {})[role] = pod
    server = found[min(found)]["warehouse"]
    serve = f"{PROBE} serve --host {address(server)} --port {PORT} --directory /run/rljob/probe"
    cluster.run(server["metadata"]["name"], "sh", "-c", f"{serve} >/tmp/probe.log 2>&1 & sleep 5")
    return found


def address(pod: Manifest) -> str:
    return str(pod["status"]["podIP"])


def read(cluster: Cluster, pods: dict[str, dict[str, Manifest]], node: str, mode: str) -> str:
    """What a reader in the worker pod of a node prints."""
    server = address(pods[min(pods)]["warehouse"])
    worker = pods[node]["worker"]["metadata"]["name"]
    sizes = "--row-bytes 1000 1000000 --turns 3"
    command = f"{PROBE} read --address {server}:{PORT} --mode {mode} {sizes}"
    return cluster.run(worker, "sh", "-c", command)


def figures(said: str) -> dict[str, Any]:
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    return dict(json.loads(line))


@pytest.mark.parametrize("mode", ["shared", "tcp"])
def test_a_worker_reads_from_the_warehouse_pod_of_its_node(
    cluster: Cluster,
    by_node: dict[str, dict[str, Manifest]],
    mode: str,
    record_property: Any,
) -> None:
    measured = figures(read(cluster, by_node, min(by_node), mode))

    record_property("dock", measured)
    assert measured["data_path"] == mode


def test_a_worker_of_another_node_reads_over_tcp(
    cluster: Cluster, by_node: dict[str, dict[str, Manifest]], record_property: Any
) -> None:
    measured = figures(read(cluster, by_node, max(by_node), "tcp"))

    record_property("dock", measured)
    assert measured["data_path"] == "tcp"


def test_memory_is_not_shared_between_nodes_and_that_is_said(
    cluster: Cluster, by_node: dict[str, dict[str, Manifest]]
) -> None:
    said = read(cluster, by_node, max(by_node), "shared")

    assert "warehouse" in said
    assert not [line for line in said.splitlines() if line.startswith("{")]


def goes_on(cluster: Cluster) -> Manifest:
    """The job some steps later: the first of them may have been done when this was called."""
    seen = step(cluster.job(JOB))
    return cluster.wait_for_job(
        JOB,
        f"it trains beyond step {seen + 4}",
        lambda j: step(j) > seen + 4,
        seconds=AGAIN_SECONDS,
    )


def test_no_row_is_made_again_where_each_is_held_twice_and_warehouses_die(
    cluster: Cluster, by_node: dict[str, dict[str, Manifest]]
) -> None:
    cluster.wait_for_job(JOB, "it trains", lambda j: step(j) > 2, seconds=STARTED_SECONDS)
    first, last = (by_node[node]["warehouse"]["metadata"]["name"] for node in sorted(by_node))

    for _ in range(2):
        assert "killed" in cluster.run(first, "sh", "-c", KILL_WAREHOUSE)
        goes_on(cluster)
    cluster.kill_pod(last)
    wait_for_another_warehouse(cluster, last, seconds=AGAIN_SECONDS)
    after = goes_on(cluster)

    assert after["status"]["attempt"] == 0
    events = events_of(cluster, JOB)
    assert [e for e in events if e["kind"] == "dock" and e.get("dropped")] == []
    assert [e for e in events if e["kind"] == "warning" and "starts over" in e["message"]] == []
    where = actors_of(cluster, JOB)["WarehouseActor"]
    assert len({node_of(cluster, pod) for pod in where}) == 2


def test_a_device_that_stops_is_named_on_the_job_and_the_stacks_outlive_its_pods(
    cluster: Cluster, by_node: dict[str, dict[str, Manifest]]
) -> None:
    worker = by_node[min(by_node)]["worker"]["metadata"]["name"]
    assert "stopped" in cluster.run(worker, "sh", "-c", STOP_DEVICE)

    cluster.patch(JOB, {"progressDeadlineSeconds": 30, "backoffLimit": 0})
    failed = cluster.wait_for_job(JOB, "it is given up", ended, seconds=120)

    assert failed["status"]["failures"][-1]["reason"] == "NoProgress"
    said = condition(failed, "Failed")["message"]
    assert "no step ended within progressDeadlineSeconds, 30; missing: device-" in said
    assert "does not answer" in said
    folder = said.rpartition("stacks and dock: ")[2]
    files = cluster.run(cluster.head(JOB), "ls", folder).split()
    assert {"summary.txt", "device-0.txt", "device-1.txt", "driver.txt", "dock.json"} <= {*files}


def node_of(cluster: Cluster, pod: str) -> str:
    (found,) = [p for p in cluster.pods(JOB) if p["metadata"]["name"] == pod]
    return str(found["spec"]["nodeName"])
