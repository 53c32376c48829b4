"""Change the number of rollout devices of a job that trains: which pods it needs, and which devices leave.

Called by the runtime when another number is requested, by the operator for its pods, and by `plan`. Pure.
Devices are numbered from the first that trains; node i has the devices from i × devicesPerNode on. Devices
that train never move, and the last devices leave first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.spec.section import Section
from rljob_api.topology.devices import num_nodes, roles, total_devices


class DevicePlace(Section):
    """One device of a running job and the host of its process."""

    device: int
    """Number of the device."""

    host: str
    """Name of its host; on a cluster, of its pod."""

    address: str
    """IP address of its host."""


class RolloutReport(Section):
    """Rollout devices as a driver reports them; `rollout` in the document that it serves."""

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
class ReleasedResources:
    """Resources that a smaller number of devices gives back: devices, the last first, and nodes that become
    empty."""

    devices: tuple[int, ...]
    nodes: tuple[int, ...]


def is_elastic(spec: RLJobSpec) -> bool:
    """Return whether the number of rollout devices may change while the job trains."""
    return spec.placement.mode == "separated" and spec.placement.update_devices is not None


def scaled(job: RLJob, rollout: int) -> RLJob:
    """Return the elastic job with `rollout` devices that generate and as many replicas as they allow."""
    spec = job.spec
    degrees = spec.rollout.parallelism.model_copy(update={"data": None})
    changed = {
        "placement": spec.placement.model_copy(update={"rollout_devices": rollout}),
        "rollout": spec.rollout.model_copy(update={"parallelism": degrees}),
    }
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def worker_pods(job: RLJob, rollout: int) -> int:
    """Return the number of pods with devices that the elastic job needs for `rollout` devices that
    generate."""
    spec = scaled(job, rollout).spec
    return num_nodes(spec.placement, spec.accelerator)


def released(job: RLJob, rollout: int) -> ReleasedResources:
    """Return what the elastic job gives back when `rollout` devices generate; nothing if there are more of
    them."""
    current = roles(job.spec.placement, job.spec.accelerator)
    devices = range(current.update + current.rollout - 1, current.update + rollout - 1, -1)
    nodes = range(worker_pods(job, current.rollout) - 1, worker_pods(job, rollout) - 1, -1)
    return ReleasedResources(devices=tuple(devices), nodes=tuple(nodes))


def device_notes(spec: RLJobSpec) -> Iterator[str]:
    """Yield notes on devices: a number that is not read, or devices without work."""
    placement, accelerator = spec.placement, spec.accelerator
    nodes, devices = num_nodes(placement, accelerator), roles(placement, accelerator)
    if placement.mode == "colocated":
        return
    if accelerator.nodes not in (None, nodes):
        yield (
            f"spec.accelerator.nodes {accelerator.nodes} is not read: updateDevices {devices.update} + "
            f"rolloutDevices {devices.rollout} fill {nodes} nodes of {accelerator.devices_per_node} devices"
        )
    idle = total_devices(placement, accelerator) - devices.update - devices.rollout
    if idle > 0:
        yield f"{idle} of {accelerator.devices_per_node} devices of the last node have no work"
