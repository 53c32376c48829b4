"""CPU and memory of a pod by role, and what a user's template puts in their place.

Emulated devices run anywhere and ask for little; on Ascend a worker has its node nearly to itself
and keeps room for the optimizer's state and for weights that are swapped to the host.
"""

from rljob_api.spec.pods import Resources
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.devices import num_warehouses, pods
from rljob_api.topology.fewer_replicas import fewest_replicas
from rljob_api.topology.worker_pods import EMULATED_REQUESTS, HOST_GIB, is_ascend
from rljob_operator.build.names import Manifest, Role

HEAD_CPU, HEAD_GIB = 8, 32
DEVICE_CPU = 8
WAREHOUSE_CPU, WAREHOUSE_GIB = 4, 2
"""Beside the rows themselves, which `dock.capacity` bounds, those of a standby by as much again."""
GIB = 2**30


def resources(role: Role, spec: RLJobSpec, own: Resources | None) -> Manifest:
    """Requests and limits of the container. own: the user's amounts, each in place of ours."""
    ours = _requests(role, spec)
    limits = {"memory": ours["memory"]} if is_ascend(spec.accelerator) else {}
    given = own or Resources()
    named = given.requests.keys() | given.limits.keys()
    return {
        "requests": {k: v for k, v in ours.items() if k not in named} | given.requests,
        "limits": {k: v for k, v in limits.items() if k not in named} | given.limits,
    }


def warehouses_per_pod(spec: RLJobSpec) -> int:
    """Most warehouses that one pod holds: with `elastic.update`, when as few nodes train as may."""
    lasting, fewest = pods(spec).warehouse, fewest_replicas(spec)
    if fewest is not None:
        lasting = min(lasting, -(-fewest // spec.accelerator.devices_per_node))
    return -(-num_warehouses(spec) // lasting)


def _requests(role: Role, spec: RLJobSpec) -> dict[str, str]:
    devices = spec.accelerator.devices_per_node
    if not is_ascend(spec.accelerator):
        return dict(EMULATED_REQUESTS)
    if role == "head":
        return _amounts(HEAD_CPU, HEAD_GIB)
    if role == "worker":
        return _amounts(devices * DEVICE_CPU, devices * HOST_GIB)
    rows = warehouses_per_pod(spec) * spec.dock.replicas * parse_quantity(spec.dock.capacity)
    return _amounts(WAREHOUSE_CPU, WAREHOUSE_GIB + -(-rows // GIB))


def _amounts(cpu: int, gibibytes: int) -> dict[str, str]:
    return {"cpu": str(cpu), "memory": f"{gibibytes}Gi"}
