"""Emulated devices on CPU: a process, its threads, and a ledger in place of a device's memory.

Collectives are gloo's. Made by `table` for `accelerator.type: emulated`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psutil
import torch
from torch import Tensor

from rljob_runtime.backends.base import DeviceMemory
from rljob_runtime.backends.ledger import MemoryLedger
from rljob_runtime.backends.process import make_repeatable


class CpuBackend:
    """An emulated device. name: for messages, e.g. "emulated:3". limit_bytes: None for no limit."""

    def __init__(self, *, name: str, limit_bytes: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.collectives = "gloo"
        self.ledger = MemoryLedger(device=name, limit_bytes=limit_bytes)

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Results repeat bitwise for the same number of threads on the same kind of processor."""
        make_repeatable(seed=seed, num_threads=num_threads, nondeterministic="error")

    def group_options(self, *, buffer_mib: int | None = None) -> None:
        """gloo keeps no device memory."""

    def memory(self) -> DeviceMemory:
        """The ledger's sum, and the resident bytes of this process."""
        return DeviceMemory(
            allocated_bytes=self.ledger.total_bytes(),
            reserved_bytes=psutil.Process().memory_info().rss,
            total_bytes=self.ledger.limit_bytes,
        )

    def naming_memory_errors(self) -> AbstractContextManager[None]:
        """Nothing to do: it is the ledger that refuses."""
        return nullcontext()

    def side_stream(self) -> "InOrder":
        """No stream: copies are done at once."""
        return InOrder()

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Plain memory, which the ledger does not count."""
        return torch.empty(num_bytes, dtype=torch.uint8)


class InOrder:
    """A `SideStream` and its `Mark` where all work is done in the order of the program."""

    @contextmanager
    def queue(self) -> Iterator[None]:
        """The body, at once."""
        yield

    def mark(self) -> "InOrder":
        """Everything is done already."""
        return self

    def hold_main(self) -> None:
        """Nothing to wait for."""

    def wait(self) -> None:
        """Nothing to wait for."""
