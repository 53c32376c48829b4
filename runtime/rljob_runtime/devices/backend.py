"""The interface of device backends: the device, its collectives, its memory.

A device worker creates one backend (`backend_table`) and passes it to the engines, which do not depend on
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
    """Bytes on a device as its allocator counts them, independent of the ledger.

    allocated: of tensors. reserved: taken from the device, including cached memory; on an emulated device the
    resident memory of the process. total: of the device, None for no limit.
    """

    allocated_bytes: int
    reserved_bytes: int
    total_bytes: int | None


class Mark(Protocol):
    """A position in a side stream, reached when all work queued before it is done."""

    def hold_main(self) -> None:
        """Make the main stream's later work wait for the mark; the host continues."""
        ...

    def wait(self) -> None:
        """Make the host wait for the mark."""
        ...


class SideStream(Protocol):
    """Runs work beside the device's main stream, such as copies, in the order of the calls."""

    def queue(self) -> AbstractContextManager[None]:
        """Run work that the body starts on this stream, after all earlier work of the main stream. On CPU,
        where work starts and ends in the body, it runs after earlier work of `run`."""
        ...

    def run(self, work: Callable[[], None]) -> Mark:
        """Run work that a function starts, and return the mark after it; on CPU a thread calls the function.
        `Mark.wait` and `Mark.hold_main` raise its errors. It allocates nothing that the ledger counts."""
        ...

    def mark(self) -> Mark:
        """Return the mark after the work that is queued so far."""
        ...


class Profiler(Protocol):
    """Records the work of a device and its host between `start` and `stop`; used once."""

    def start(self) -> None:
        """Start to record; only work after it is in the trace."""
        ...

    def stop(self) -> None:
        """End the recording and collect the trace, which `export_chrome_trace` writes."""
        ...

    def export_chrome_trace(self, path: str, /) -> object:
        """Write the recorded trace. path: of a new file, `.json`."""
        ...


class Backend(Protocol):
    """The backend of one device of this process."""

    @property
    def device(self) -> torch.device:
        """Return the torch device for tensors."""
        ...

    @property
    def collectives(self) -> str:
        """Return the backend for `torch.distributed.init_process_group`: the device's library, and gloo for
        tensors on the host."""
        ...

    @property
    def ledger(self) -> MemoryLedger:
        """Return the ledger of the device's memory."""
        ...

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Prepare this process for repeatable work; called once, before the first tensor."""
        ...

    def group_options(self, *, buffer_mib: int | None = None) -> object | None:
        """Return `pg_options` of a process group.

        buffer_mib: device memory for the group's collectives; None for the default of their library.
        """
        ...

    def memory(self) -> DeviceMemory:
        """Return the allocator's figures of the device memory."""
        ...

    def naming_memory_errors(self) -> AbstractContextManager[None]:
        """Raise DeviceMemoryError, which lists the memory in use, where an allocation of the body fails."""
        ...

    def profiler(self) -> Profiler:
        """Return a profiler of operators, on the host and on the device, that has not started."""
        ...

    def side_stream(self) -> SideStream:
        """Return a new side stream for copies."""
        ...

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate uninitialised host bytes, uint8 [num_bytes], pinned where the device copies from them."""
        ...
