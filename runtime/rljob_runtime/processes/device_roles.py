"""Define the role of every device of a job, and how the devices of a world start together.

Called by `placement` for a run's first devices and by `elastic` for those that join.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rljob_api.topology.devices import used_devices
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.worker.device_role import DeviceRole


def device_roles(job: ResolvedJob) -> list[DeviceRole]:
    """Return one role per device. Colocated: every device updates and generates; separated: each
    device does one of both."""
    placement, accelerator = job.spec.placement, job.spec.accelerator
    return [role_of(job, rank) for rank in range(used_devices(placement, accelerator))]


def role_of(job: ResolvedJob, rank: int) -> DeviceRole:
    """Return the role of a device; devices beyond the job's own number generate."""
    updating = job.spec.roles.update
    trains = rank < updating
    per_replica = job.spec.rollout.parallelism.model_devices
    first = 0 if trains else rank - (rank - updating) % per_replica
    return DeviceRole(
        rank=rank,
        update_rank=rank if trains else None,
        num_updating=updating,
        generates=job.spec.placement.mode == "colocated" or not trains,
        node=rank // job.spec.accelerator.devices_per_node,
        world=tuple(range(first, first + (updating if trains else per_replica))),
    )


def role_among(role: DeviceRole, training: Sequence[int]) -> DeviceRole:
    """Return the role of a training device in a world of these devices, given by number and including
    itself."""
    world = tuple(sorted(training))
    rank = world.index(role.rank)
    return replace(role, update_rank=rank, num_updating=len(world), world=world)


def prepare(
    workers: Sequence[Any], roles: Sequence[DeviceRole], *, meet_seconds: float | None = None
) -> list[Any]:
    """Return pending calls that let full worlds of devices meet and load their models; each returns a
    DevicePlace.

    A world meets once all of its devices are alive; this function does not wait for that. roles: may
    differ from the devices' earlier ones. meet_seconds: how long a device waits for the others, who were
    alive; None: as long as for a stage.
    """
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
