"""The seam of device backends: what device there is, how ranks talk, what memory it has.

A device worker makes one backend and gives its parts to the engines, which know no hardware.
"""

from typing import Protocol

import torch

from rljob_runtime.backends.ledger import MemoryLedger


class Backend(Protocol):
    """One device of this process.

    device: where tensors live. collectives: backend name for `torch.distributed`.
    """

    @property
    def device(self) -> torch.device:
        """The device for tensors."""
        ...

    @property
    def collectives(self) -> str:
        """Name that `torch.distributed.init_process_group` takes."""
        ...

    @property
    def ledger(self) -> MemoryLedger:
        """The device's memory."""
        ...

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Prepare this process for repeatable work; once, before the first tensor."""
        ...
