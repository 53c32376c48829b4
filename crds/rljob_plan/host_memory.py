"""Memory of hosts that a job takes: for what leaves its devices, with a swap the update's weights and the
reference's, with an offload the optimizer's state; for second copies of what devices alone hold; and for
weights that come while devices generate.

Called by `plan` and `memory_rules`; the operator's pods ask for as much as `HOST_GIB` says.
"""

from dataclasses import dataclass

from rljob_api.spec.pods import parse_amount
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.worker_pods import HOST_GIB
from rljob_plan.memory import Memory

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Of the fullest node. parts: name → bytes of all of its devices. devices: that keep something there.
    limit: bytes that its worker pod may use, None where nothing says so."""

    parts: dict[str, int]
    devices: int
    limit: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


def plan_host(spec: ResolvedSpec, memory: Memory) -> HostMemory:
    """Of the fullest node; each of its devices counts as the fullest."""
    size, of = spec.accelerator.devices_per_node, spec.roles
    if spec.placement.mode == "colocated":
        nodes = [(min(of.update, size), 0)]
    else:  # devices that train come first
        devices = of.update + of.rollout
        nodes = [
            (_within(0, of.update, first, size), _within(of.update, devices, first, size))
            for first in range(0, devices, size)
        ]
    train, generate = max(nodes, key=lambda node: sum(_parts(memory, *node).values()))
    return HostMemory(
        parts=_parts(memory, train, generate),
        devices=train + (generate if memory.arriving else 0),
        limit=_worker_limit(spec),
    )


def on_hosts(spec: ResolvedSpec, memory: Memory) -> dict[str, int]:
    """Of all nodes together, by name."""
    of = spec.roles
    return _parts(memory, of.update, of.rollout)


def _within(begin: int, end: int, first: int, size: int) -> int:
    """How many of the devices `begin` to `end` are among the `size` from `first` on."""
    return max(0, min(end, first + size) - max(begin, first))


def _parts(memory: Memory, train: int, generate: int) -> dict[str, int]:
    parts = {name: train * size for name, size in memory.resting.items() if train}
    if memory.arriving and generate:
        parts["arriving weights"] = generate * memory.arriving
    return parts


def _worker_limit(spec: ResolvedSpec) -> int | None:
    """As the operator makes worker pods: the template's limit; without one of ours, where it asks for an
    amount."""
    template = spec.pod_templates.worker
    own = template.resources if template is not None else None
    if own is not None and "memory" in own.limits:
        return int(parse_amount(own.limits["memory"]))
    if own is not None and "memory" in own.requests:
        return None
    if spec.accelerator.type == "emulated":
        return None
    return spec.accelerator.devices_per_node * HOST_GIB * GIB
