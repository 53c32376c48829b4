"""CPU and memory of a pod by role, and what a user's template replaces.

Emulated devices run anywhere and request little. On Ascend a worker has its node nearly to itself, and has
room for the optimizer's state and for weights that are swapped to the host.
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
"""Resources besides the rows, which `dock.capacity` bounds; rows of a standby have the same bound again."""
GIB = 2**30


def resources(role: Role, spec: RLJobSpec, user: Resources | None) -> Manifest:
    """Return the requests and limits of the container. user: the user's amounts, which replace the
    defaults."""
    defaults = _requests(role, spec)
    limits = {"memory": defaults["memory"]} if is_ascend(spec.accelerator) else {}
    user_amounts = user or Resources()
    named = user_amounts.requests.keys() | user_amounts.limits.keys()
    return {
        "requests": {k: v for k, v in defaults.items() if k not in named} | user_amounts.requests,
        "limits": {k: v for k, v in limits.items() if k not in named} | user_amounts.limits,
    }


def warehouses_per_pod(spec: RLJobSpec) -> int:
    """Return the most warehouses that one pod holds: with `elastic.update`, if the fewest nodes train."""
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
