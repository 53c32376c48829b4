"""Which pod each warehouse goes to, on a cluster that has pods of their own for them.

Called by `placement`. Where rows are held twice, the two warehouses of a row must not go together.
"""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

WAREHOUSE_RESOURCE = "rljob_warehouse"
"""What a warehouse's pod offers; without such pods, warehouses go where Ray puts them."""


def warehouse_homes(warehouses: int, *, apart: bool) -> list[dict[str, Any]]:
    """Ray's options for each warehouse's actor; none where there are no such pods.

    apart: two that follow each other go to two pods, the first one following the last.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    pods = sorted(n["NodeID"] for n in nodes if WAREHOUSE_RESOURCE in n["Resources"])
    if not pods:
        return []
    room: dict[str, Any] = {"resources": {WAREHOUSE_RESOURCE: 1}}
    if not apart:
        return [room] * warehouses
    return [{**room, **_at(pod)} for pod in go_round(pods, warehouses)]


def go_round(pods: list[str], warehouses: int) -> list[str]:
    """A pod for each warehouse, neighbours apart. The contract asks for as many on each: then no pod has
    room for another one's, and what a lost pod held waits for the one in its place."""
    return [pods[index % len(pods)] for index in range(warehouses)]


def _at(pod: str) -> dict[str, Any]:
    """In that pod while it is there; what takes its place after a failure is another one."""
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=pod, soft=True)}
