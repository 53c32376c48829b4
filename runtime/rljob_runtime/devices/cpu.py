"""Emulated devices on CPU: a process, its threads, and a ledger in place of a device's memory.

Collectives use gloo. Created by `backend_table` for `accelerator.type: emulated`.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext

import psutil
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rljob_runtime.devices.backend import DeviceMemory
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.devices.process import make_repeatable


class CpuBackend:
    """An emulated device. name: for messages, e.g. "emulated:3". limit_bytes: None for no limit."""

    def __init__(self, *, name: str, limit_bytes: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.collectives = "gloo"
        self.ledger = MemoryLedger(device=name, limit_bytes=limit_bytes)

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Set up the process; results repeat bitwise for the same number of threads on the same type of
        CPU."""
        make_repeatable(seed=seed, num_threads=num_threads, nondeterministic="error")

    def group_options(self, *, buffer_mib: int | None = None) -> None:
        """Return None: gloo uses no device memory."""

    def memory(self) -> DeviceMemory:
        """Return the ledger's sum and the resident bytes of this process."""
        return DeviceMemory(
            allocated_bytes=self.ledger.total_bytes(),
            reserved_bytes=psutil.Process().memory_info().rss,
            total_bytes=self.ledger.limit_bytes,
        )

    def naming_memory_errors(self) -> AbstractContextManager[None]:
        """Return an empty context: the ledger itself raises DeviceMemoryError."""
        return nullcontext()

    def profiler(self) -> profile:
        """Return torch's profiler of operators on the CPU."""
        return profile(activities=[ProfilerActivity.CPU])

    def side_stream(self) -> "ThreadStream":
        """Return a side stream that is a new thread."""
        return ThreadStream(self.ledger.device)

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate plain memory, which the ledger does not count."""
        return torch.empty(num_bytes, dtype=torch.uint8)


class ThreadStream:
    """A `SideStream` that is a thread, which starts with its first work."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{name} side")
        self._last: Future[None] | None = None

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Run the body in the calling thread, after all earlier work of the side thread."""
        self.mark().wait()
        yield

    def run(self, work: Callable[[], None]) -> "ThreadMark":
        """Queue work for the thread. Copies release the GIL, so that other threads run Python meanwhile."""
        self._last = self._thread.submit(torch.no_grad()(work))
        return ThreadMark(self._last)

    def mark(self) -> "ThreadMark":
        """Return the mark after the last work."""
        return ThreadMark(self._last)


class ThreadMark:
    """A `Mark` that is the end of a thread's work."""

    def __init__(self, work: "Future[None] | None") -> None:
        self._work = work

    def hold_main(self) -> None:
        """Wait in this thread, which takes the place of the main stream."""
        self.wait()

    def wait(self) -> None:
        """Wait until the work has ended."""
        if self._work is not None:
            self._work.result()
