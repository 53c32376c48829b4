"""How many devices of a node one pod may request, by type of accelerator.

A device plugin refuses other numbers when the pod starts; the rules refuse them earlier. A job on several
nodes takes full nodes, or on ascend910c full modules of two devices. In super-pods, which
`topology.super_pods` handles, it takes full nodes there too. Called by `cluster_rules` and `cel`.
"""

from rljob_api.spec.infrastructure import Accelerator

ONE_NODE = {
    "ascend910b": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16),
    "ascend910c": (1, 2, 4, 6, 8, 10, 12, 14, 16),
    "ascend950": (1, 2, 3, 4, 5, 6, 7, 8),
}
SEVERAL_NODES = {
    "ascend910b": (8, 16),
    "ascend910c": (2, 4, 6, 8, 10, 12, 14, 16),
    "ascend950": (8,),
}


def legal_devices(accelerator: Accelerator, *, nodes: int) -> tuple[int, ...] | None:
    """Return the legal values of devicesPerNode in ascending order, or None if every number is legal, as on
    emulated devices."""
    table = ONE_NODE if nodes == 1 else SEVERAL_NODES
    return table.get(accelerator.type)
