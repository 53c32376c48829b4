"""Memory of hosts that a job takes for what leaves its devices: with a swap the update's weights and the
reference's, with an offload the optimizer's state.

Called by `plan` and `memory_rules`; the operator's pods ask for as much as `HOST_GIB` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.pods import parse_amount
from rljob_api.rljob import RLJobSpec
from rljob_api.topology import roles

HOST_GIB = 64
"""Memory that a worker pod on Ascend asks for, a device, where the job does not say another amount."""
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Of the fullest node. parts: name → bytes of all of its devices that train. limit: bytes that its
    worker pod may use, None where nothing says so."""

    parts: dict[str, int]
    devices: int
    limit: int | None

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


def plan_host(spec: RLJobSpec, resting: Mapping[str, int]) -> HostMemory:
    """Of the fullest node. spec: resolved. resting: of the fullest device, as every device of the node may
    be."""
    devices = min(roles(spec.placement, spec.accelerator).update, spec.accelerator.devices_per_node)
    return HostMemory(
        parts={name: devices * size for name, size in resting.items()},
        devices=devices,
        limit=_worker_limit(spec),
    )


def on_hosts(spec: RLJobSpec, resting: Mapping[str, int]) -> dict[str, int]:
    """Of all nodes together, by name."""
    devices = roles(spec.placement, spec.accelerator).update
    return {name: devices * size for name, size in resting.items()}


def _worker_limit(spec: RLJobSpec) -> int | None:
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
