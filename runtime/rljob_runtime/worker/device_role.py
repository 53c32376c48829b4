"""The role of one device of a job.

`device_roles` creates it; the device worker and placement read it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRole:
    """The layouts that a device is part of, and the devices that it computes with.

    rank: number of the device in the job. update_rank: rank among the devices that train, None for others.
    node: index of the device's node. world: numbers of the devices that it computes with, including itself,
    which start together.
    """

    rank: int
    update_rank: int | None
    num_updating: int
    generates: bool
    node: int
    world: tuple[int, ...] = ()

    @property
    def world_rank(self) -> int:
        """Return the device's rank in its world."""
        return self.world.index(self.rank) if self.world else 0

    @property
    def world_size(self) -> int:
        """Return the number of devices in the world."""
        return len(self.world) or 1
