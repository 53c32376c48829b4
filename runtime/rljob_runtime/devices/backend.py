"""The seam of device backends: what device there is, how ranks talk, what memory it has.

A device worker makes one backend (`backend_table`) and gives its parts to the engines, which know no
hardware.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.devices.memory_ledger import MemoryLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes on a device as its allocator sees them, whatever the ledger was told.

    allocated: of tensors. reserved: taken from the device, with what is kept for later tensors; on
    an emulated device the whole process. total: of the device, None for no limit.
    """

    allocated_bytes: int
    reserved_bytes: int
    total_bytes: int | None


class Mark(Protocol):
    """A place in a side stream, reached when everything queued before it is done."""

    def hold_main(self) -> None:
        """Let the main stream's later work wait for it; the host goes on."""
        ...

    def wait(self) -> None:
        """Let the host wait for it."""
        ...


class SideStream(Protocol):
    """Work beside the device's main stream, such as copies, in the order in which it is given."""

    def queue(self) -> AbstractContextManager[None]:
        """What the body starts runs here, after all that the main stream was given before; on CPU, where
        work starts and ends in the body, after what `run` was given before."""
        ...

    def run(self, work: Callable[[], None]) -> Mark:
        """The same of a function, which on CPU a thread calls meanwhile; the place after it. What it
        raises, `Mark.wait` and `Mark.hold_main` raise. It allocates nothing that the ledger counts."""
        ...

    def mark(self) -> Mark:
        """The place after what was queued so far."""
        ...


class Profiler(Protocol):
    """Records what a device and its host do between `start` and `stop`; once."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def export_chrome_trace(self, path: str, /) -> object:
        """Write what was recorded. path: of a file that is to be made, `.json`."""
        ...


class Backend(Protocol):
    """One device of this process."""

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        ...

    @property
    def collectives(self) -> str:
        """Name that `torch.distributed.init_process_group` takes: the device's own library, and gloo for what
        ranks tell each other from the host."""
        ...

    @property
    def ledger(self) -> MemoryLedger:
        """What the device's memory is used for."""
        ...

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Prepare this process for repeatable work; once, before the first tensor."""
        ...

    def group_options(self, *, buffer_mib: int | None = None) -> object | None:
        """`pg_options` of a process group.

        buffer_mib: device memory that the group's collectives keep; None for their library's default.
        """
        ...

    def memory(self) -> DeviceMemory:
        """The allocator's account."""
        ...

    def naming_memory_errors(self) -> AbstractContextManager[None]:
        """Where the device refuses memory in the body, DeviceMemoryError says what holds it."""
        ...

    def profiler(self) -> Profiler:
        """A profiler of operators, on the host and on the device, that has not started."""
        ...

    def side_stream(self) -> SideStream:
        """A stream of its own for copies."""
        ...

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Uninitialised host bytes, uint8 [num_bytes], pinned where the device copies from there."""
        ...
