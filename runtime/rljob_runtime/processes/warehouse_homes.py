"""Choose the pod of each warehouse, on a cluster with pods reserved for warehouses.

Called by `placement`. If rows are held twice, the two warehouses of a row must be in different pods. If
training continues without a node, the remaining pods have capacity for the warehouses of a lost one.
"""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WAREHOUSE_RESOURCE = "rljob_warehouse"
"""The Ray resource that a warehouse's pod offers; without such pods, Ray chooses where warehouses go."""


def warehouse_homes(warehouses: int, *, spread: int | None) -> list[dict[str, Any]]:
    """Return Ray's options for each warehouse's actor; none if there are no such pods.

    spread: number of pods to use. Two consecutive warehouses are in different pods, and so are the last
    and the first one. None: any pod with capacity.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    pods = sorted(n["NodeID"] for n in alive if n["Resources"].get(WAREHOUSE_RESOURCE))
    if not pods:
        return []
    options: dict[str, Any] = {"resources": {WAREHOUSE_RESOURCE: 1}}
    if spread is None:
        return [options] * warehouses
    return [{**options, **on_node(pod)} for pod in go_round(pods[:spread], warehouses)]


def go_round(pods: list[str], warehouses: int) -> list[str]:
    """Return a pod for each warehouse, with neighbours in different pods. pods: without spare ones.

    If rows are held twice, the spec requires equally many on each pod, so no pod has capacity for a
    second one's warehouses. The warehouses of a lost pod move to a spare pod, or wait for its
    replacement.
    """
    return [pods[index % len(pods)] for index in range(warehouses)]


def on_node(node: str) -> dict[str, Any]:
    """Return options for an actor on this node of Ray while it exists; after a failure another node
    replaces it.

    The actor requests a byte of memory. Ray puts an actor that requests nothing on any node, whatever a
    soft strategy says (`ClusterResourceScheduler::GetBestSchedulableNode`).
    """
    return {
        "memory": 1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    }
