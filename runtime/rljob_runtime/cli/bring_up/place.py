"""The context of one process of a check. Created by `child`, passed to the check. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path


class NotApplicable(Exception):
    """Ends a check that does not apply to this machine; the message gives the reason."""


class WrongResult(Exception):
    """Ends a check whose result differs from the expected one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """The context of a check's process. accelerator: its type, or cuda. rank, size: of this process among
    those of the check. devices: number of the machine's. folder: shared by all processes of the check.
    seconds: the check's time limit."""

    accelerator: str
    rank: int
    size: int
    devices: int
    folder: Path
    seconds: float

    @property
    def emulated(self) -> bool:
        """Return whether the device is emulated on the CPU."""
        return self.accelerator == "emulated"

    @property
    def on_npus(self) -> bool:
        """Return whether the devices are Ascend NPUs."""
        return self.accelerator.startswith("ascend")
