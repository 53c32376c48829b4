"""The role of every device of a job, and how the devices of a world start together.

Called by `placement` for a run's first devices and by `elastic` for those that join.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rljob_api.topology.devices import used_devices
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.worker.device_role import DeviceRole


def device_roles(job: ResolvedJob) -> list[DeviceRole]:
    """One role a device. Colocated: every device updates and generates; separated: one role each."""
    placement, accelerator = job.spec.placement, job.spec.accelerator
    return [role_of(job, rank) for rank in range(used_devices(placement, accelerator))]


def role_of(job: ResolvedJob, rank: int) -> DeviceRole:
    """The role of a device; one beyond those of the job's own count generates."""
    updating = job.spec.roles.update
    trains = rank < updating
    together = job.spec.rollout.parallelism.model_devices
    first = 0 if trains else rank - (rank - updating) % together
    return DeviceRole(
        rank=rank,
        update_rank=rank if trains else None,
        num_updating=updating,
        generates=job.spec.placement.mode == "colocated" or not trains,
        node=rank // job.spec.accelerator.devices_per_node,
        world=tuple(range(first, first + (updating if trains else together))),
    )


def among(role: DeviceRole, training: Sequence[int]) -> DeviceRole:
    """The role of a device that trains while these devices do, by number, itself among them."""
    world = tuple(sorted(training))
    rank = world.index(role.rank)
    return replace(role, update_rank=rank, num_updating=len(world), world=world)


def prepare(
    workers: Sequence[Any], roles: Sequence[DeviceRole], *, meet_seconds: float | None = None
) -> list[Any]:
    """Pending calls that let whole worlds of devices meet and load their models; they end with a
    DevicePlace each. A world meets once all of its devices are alive, and nothing here waits for that. roles:
    may be other ones than the devices had before.
    meet_seconds: how long one that comes waits for the others, who were alive; None: as for a stage."""
    meetings: list[Any] = []
    for worker, role in zip(workers, roles, strict=True):
        if role.world_size == 1:
            meetings.append(None)
        elif role.world_rank == 0:
            world = workers[len(meetings) : len(meetings) + role.world_size]
            meetings.append(worker.open_world(*[w.address() for w in world]))
        else:
            meetings.append(meetings[-1])
    return [
        each.prepare(meeting, role, meet_seconds)
        for each, role, meeting in zip(workers, roles, meetings, strict=True)
    ]
