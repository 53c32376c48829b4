"""What one device of a job does. Made by `device_roles`; read by the device worker and where it is placed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRole:
    """Which layouts a device is part of, and with whom.

    rank: number of the device in the job. update_rank: rank among the devices that train, None for
    others. node: index of the node that the device belongs to. world_rank, world_size: among the devices
    that it computes with, which start together; they have consecutive numbers.
    """

    rank: int
    update_rank: int | None
    num_updating: int
    generates: bool
    node: int
    world_rank: int = 0
    world_size: int = 1
