"""Another number of rollout devices for a job that trains: which pods, who leaves.

Called by the runtime when it is asked for another number, by the operator for its pods, and by
`plan`. Pure. Devices are numbered from the first that trains; node i has the devices from
i × devicesPerNode on. Devices that train never move, and the last devices leave first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.spec.section import Section
from rljob_api.topology.devices import num_nodes, roles, total_devices


class DevicePlace(Section):
    """One device of a running job and where its process is."""

    device: int
    """Number of the device."""

    host: str
    """Name of its host; on a cluster, of its pod."""

    address: str
    """IP address of its host."""


class RolloutReport(Section):
    """What a driver says of its rollout devices; `rollout` in the document that it serves."""

    wanted: int
    """Devices that shall generate."""

    ready: int
    """Devices that generate now."""

    joining: int = 0
    """Devices that wait for a place, start or load the model."""

    draining: list[DevicePlace] = Field(default_factory=list)
    """Devices that generate, and leave after the present step."""

    hosts: list[str] = Field(default_factory=list)
    """Hosts with a device of the job; every other one may go."""

    message: str = ""
    """Why the wanted number is not there, where something failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a smaller number gives back: devices, the last first, and nodes that become empty."""

    devices: tuple[int, ...]
    nodes: tuple[int, ...]


def is_elastic(spec: RLJobSpec) -> bool:
    """Whether the number of rollout devices may change while the job trains."""
    return spec.placement.mode == "separated" and spec.placement.update_devices is not None


def scaled(job: RLJob, rollout: int) -> RLJob:
    """The elastic job with `rollout` devices that generate, as many replicas as they allow."""
    spec = job.spec
    degrees = spec.rollout.parallelism.model_copy(update={"data": None})
    changed = {
        "placement": spec.placement.model_copy(update={"rollout_devices": rollout}),
        "rollout": spec.rollout.model_copy(update={"parallelism": degrees}),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def worker_pods(job: RLJob, rollout: int) -> int:
    """Pods with devices that the elastic job needs for `rollout` devices that generate."""
    spec = scaled(job, rollout).spec
    return num_nodes(spec.placement, spec.accelerator)


def released(job: RLJob, rollout: int) -> Released:
    """What the elastic job gives back when `rollout` devices generate; nothing when they are more."""
    own = roles(job.spec.placement, job.spec.accelerator)
    devices = range(own.update + own.rollout - 1, own.update + rollout - 1, -1)
    nodes = range(worker_pods(job, own.rollout) - 1, worker_pods(job, rollout) - 1, -1)
    return Released(devices=tuple(devices), nodes=tuple(nodes))


def device_notes(spec: RLJobSpec) -> Iterator[str]:
    """What a user may not expect of the devices: a number that is not read, devices without work."""
    placement, accelerator = spec.placement, spec.accelerator
    nodes, own = num_nodes(placement, accelerator), roles(placement, accelerator)
    if placement.mode == "colocated":
        return
    if accelerator.nodes not in (None, nodes):
        yield (
            f"spec.accelerator.nodes {accelerator.nodes} is not read: updateDevices {own.update} + "
            f"rolloutDevices {own.rollout} fill {nodes} nodes of {accelerator.devices_per_node} devices"
        )
    idle = total_devices(placement, accelerator) - own.update - own.rollout
    if idle > 0:
        yield f"{idle} of {accelerator.devices_per_node} devices of the last node have no work"
