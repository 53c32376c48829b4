"""Where a check runs: one process of it. Made by `child`, given to what checks do. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path


class NotApplicable(Exception):
    """Ends a check that has nothing to look at here; the message says why."""


class Differs(Exception):
    """Ends a check whose result is not what it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """accelerator: its type, or cuda. rank, size: of this process among those of the check. devices: of the
    machine. folder: of the check, for all of its processes. seconds: that the check has."""

    accelerator: str
    rank: int
    size: int
    devices: int
    folder: Path
    seconds: float

    @property
    def emulated(self) -> bool:
        """Whether the device is this processor."""
        return self.accelerator == "emulated"

    @property
    def on_npus(self) -> bool:
        """Whether devices are Ascend NPUs."""
        return self.accelerator.startswith("ascend")
