"""Which pod each warehouse goes to, on a cluster that has pods of their own for them.

Called by `placement`. Where rows are held twice, the two warehouses of a row must not go together; where
training goes on without a node, its pods have room for those of a lost one.
"""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WAREHOUSE_RESOURCE = "rljob_warehouse"
"""What a warehouse's pod offers; without such pods, warehouses go where Ray puts them."""


def warehouse_homes(warehouses: int, *, spread: int | None) -> list[dict[str, Any]]:
    """Ray's options for each warehouse's actor; none where there are no such pods.

    spread: over so many pods, two that follow each other in two pods, the first one following the last; None:
    wherever there is room.
    """
    alive = [node for node in ray.nodes() if node["Alive"]]
    pods = sorted(n["NodeID"] for n in alive if n["Resources"].get(WAREHOUSE_RESOURCE))
    if not pods:
        return []
    room: dict[str, Any] = {"resources": {WAREHOUSE_RESOURCE: 1}}
    if spread is None:
        return [room] * warehouses
    return [{**room, **on_node(pod)} for pod in go_round(pods[:spread], warehouses)]


def go_round(pods: list[str], warehouses: int) -> list[str]:
    """A pod for each warehouse, neighbours apart. pods: without spare ones.

    The contract asks for as many on each where rows are held twice: then no pod has room for another one's,
    and what a lost pod held goes to a spare pod, or waits for the one in its place."""
    return [pods[index % len(pods)] for index in range(warehouses)]


def on_node(node: str) -> dict[str, Any]:
    """On that node of Ray while it is there; what takes its place after a failure is another one.

    Asks for a byte of memory: Ray puts an actor that asks for nothing on any node, whatever a soft strategy
    says (`ClusterResourceScheduler::GetBestSchedulableNode`)."""
    return {
        "memory": 1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    }
