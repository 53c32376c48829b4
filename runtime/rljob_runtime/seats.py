"""Who sits where: the seat of every device, and how the devices of a world start together.

Called by `placement` for a run's first devices and by `elastic` for those that join.
"""

from collections.abc import Sequence
from typing import Any

from rljob_api.rljob import RLJob
from rljob_api.topology import roles, used_devices
from rljob_runtime.actors.device import Seat


def make_seats(job: RLJob) -> list[Seat]:
    """One seat a device. Colocated: every device updates and generates; separated: one role each."""
    placement, accelerator = job.spec.placement, job.spec.accelerator
    return [seat_of(job, rank) for rank in range(used_devices(placement, accelerator))]


def seat_of(job: RLJob, rank: int) -> Seat:
    """The seat of a device; one beyond those of the job's own count generates."""
    updating = roles(job.spec.placement, job.spec.accelerator).update
    trains = rank < updating
    together = job.spec.rollout.parallelism.model_devices
    return Seat(
        rank=rank,
        update_rank=rank if trains else None,
        num_updating=updating,
        generates=job.spec.placement.mode == "colocated" or not trains,
        node=rank // job.spec.accelerator.devices_per_node,
        world_rank=rank if trains else (rank - updating) % together,
        world_size=updating if trains else together,
    )


def prepare(workers: Sequence[Any], seats: Sequence[Seat]) -> list[Any]:
    """Pending calls that let whole worlds of devices meet and load their models; they end with a
    DevicePlace each. A world meets once all of its devices are alive, and nothing here waits for that."""
    meetings: list[Any] = []
    for worker, seat in zip(workers, seats, strict=True):
        if seat.world_size == 1:
            meetings.append(None)
        elif seat.world_rank == 0:
            world = workers[len(meetings) : len(meetings) + seat.world_size]
            meetings.append(worker.open_world(*[w.address() for w in world]))
        else:
            meetings.append(meetings[-1])
    return [worker.prepare(meeting) for worker, meeting in zip(workers, meetings, strict=True)]
