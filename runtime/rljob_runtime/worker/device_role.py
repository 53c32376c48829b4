"""What one device of a job does. Made by `device_roles`; read by the device worker and where it is placed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRole:
    """Which layouts a device is part of, and with whom.

    rank: number of the device in the job. update_rank: rank among the devices that train, None for
    others. node: index of the node that the device belongs to. world: numbers of the devices that it computes
    with, itself among them, which start together.
    """

    rank: int
    update_rank: int | None
    num_updating: int
    generates: bool
    node: int
    world: tuple[int, ...] = ()

    @property
    def world_rank(self) -> int:
        """Its place in the world."""
        return self.world.index(self.rank) if self.world else 0

    @property
    def world_size(self) -> int:
        """Devices of the world."""
        return len(self.world) or 1
