"""The dock between pods: in a node through shared memory and over TCP, and between nodes."""

import json
from typing import Any

import pytest
from support.cluster import Cluster, Manifest
from support.jobs import STARTED_SECONDS, holds, small

JOB = "rows"
PORT = 29100
PROBE = "python -m rljob_runtime.dock.probe"


@pytest.fixture(scope="module")
def by_node(cluster: Cluster) -> dict[str, dict[str, Manifest]]:
    """Worker and warehouse pod of each node; the first node's warehouse pod serves a dock of its own."""
    cluster.apply(small(JOB, nodes=2, steps=5000))
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
