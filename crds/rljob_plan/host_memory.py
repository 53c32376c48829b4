"""Compute the memory that a job needs on hosts.

It holds what leaves the devices: with a swap the update's weights and the reference's, with an offload the
optimizer's state. It also holds second copies of what devices alone hold, and weights that arrive while
devices generate. Called by `plan` and `memory_rules`; the operator's pods request as much as `HOST_GIB` says.
"""

from dataclasses import dataclass

from rljob_api.spec.pods import parse_amount
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.worker_pods import HOST_GIB
from rljob_plan.memory import MemoryPlan

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory of the fullest node. parts: name → bytes of all of its devices. devices: those that keep
    something there. limit: bytes that its worker pod may use, None if unlimited or unknown."""

    parts: dict[str, int]
    devices: int
    limit: int | None

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())


def plan_host(spec: ResolvedSpec, memory: MemoryPlan) -> HostMemory:
    """Return the memory of the fullest node. Each of its devices counts as the fullest."""
    size, role_devices = spec.accelerator.devices_per_node, spec.roles
    if spec.placement.mode == "colocated":
        nodes = [(min(role_devices.update, size), 0)]
    else:  # devices that train come first
        devices = role_devices.update + role_devices.rollout
        nodes = [
            (
                _within(0, role_devices.update, first, size),
                _within(role_devices.update, devices, first, size),
            )
            for first in range(0, devices, size)
        ]
    train, generate = max(nodes, key=lambda node: sum(_parts(memory, *node).values()))
    return HostMemory(
        parts=_parts(memory, train, generate),
        devices=train + (generate if memory.arriving else 0),
        limit=_worker_limit(spec),
    )


def on_hosts(spec: ResolvedSpec, memory: MemoryPlan) -> dict[str, int]:
    """Return the bytes on all nodes together, by name."""
    role_devices = spec.roles
    return _parts(memory, role_devices.update, role_devices.rollout)


def _within(begin: int, end: int, first: int, size: int) -> int:
    """Count the devices from `begin` to `end` that are among the `size` devices from `first` on."""
    return max(0, min(end, first + size) - max(begin, first))


def _parts(memory: MemoryPlan, train: int, generate: int) -> dict[str, int]:
    parts = {name: train * size for name, size in memory.offloaded.items() if train}
    if memory.arriving and generate:
        parts["arriving weights"] = generate * memory.arriving
    return parts


def _worker_limit(spec: ResolvedSpec) -> int | None:
    """Return the memory limit of a worker pod as the operator sets it: the template's limit, else none if the
    template has a request, else the default request on Ascend."""
    template = spec.pod_templates.worker
    resources = template.resources if template is not None else None
    if resources is not None and "memory" in resources.limits:
        return int(parse_amount(resources.limits["memory"]))
    if resources is not None and "memory" in resources.requests:
        return None
    if spec.accelerator.type == "emulated":
        return None
    return spec.accelerator.devices_per_node * HOST_GIB * GIB
