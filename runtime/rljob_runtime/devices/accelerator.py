"""Devices with a torch module such as torch.npu or torch.cuda: memory, streams, pinned host memory.

Shared by `ascend` and `cuda`, as torch.npu and torch.cuda have the same functions.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.profiler import profile

from rljob_runtime.devices.backend import DeviceMemory, Profiler
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.devices.own_time import OWN_TIME
from rljob_runtime.devices.process import make_repeatable


class DeviceModule(Protocol):
    """The functions that are used of torch.npu or torch.cuda."""

    def is_available(self) -> bool:
        """Return whether the driver finds a device."""
        ...

    def set_device(self, device: torch.device) -> None:
        """Make the device the current one of this thread, for streams and new tensors."""
        ...

    def manual_seed_all(self, seed: int) -> None:
        """Seed the random generators of all devices that this process sees."""
        ...

    def memory_allocated(self, device: torch.device) -> int:
        """Return the bytes of this process's live tensors on the device."""
        ...

    def memory_reserved(self, device: torch.device) -> int:
        """Return the bytes that the caching allocator took from the device, free blocks included."""
        ...

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        """Return the free and the total bytes of the device, over all processes."""
        ...

    def current_stream(self) -> Any:
        """Return the stream to which this thread's operations on the device go."""
        ...

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context in which operations go to this stream."""
        ...

    def Stream(self) -> Any:
        """Create a new stream of the current device."""
        ...

    def Event(self, enable_timing: bool = False) -> Any:
        """Create an event to record in a stream. enable_timing: allows `elapsed_time`, in milliseconds."""
        ...


class AcceleratorBackend:
    """A device of this process. name: for messages. limit_bytes: of the ledger, None for no limit."""

    collectives: str

    def __init__(
        self,
        *,
        device: torch.device,
        module: DeviceModule,
        name: str,
        limit_bytes: int | None = None,
    ) -> None:
        self.device = device
        self.ledger = MemoryLedger(device=name, limit_bytes=limit_bytes)
        self._module = module

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Set up the process; operations without a deterministic form on the device only warn."""
        self._module.set_device(self.device)
        make_repeatable(seed=seed, num_threads=num_threads, nondeterministic="warn")
        self._module.manual_seed_all(seed)
        OWN_TIME.clock = DeviceClock(self._module)

    def group_options(self, *, buffer_mib: int | None = None) -> object | None:
        """Return None: the collectives use their defaults."""
        return None

    def memory(self) -> DeviceMemory:
        """Return the caching allocator's figures for this process."""
        return DeviceMemory(
            allocated_bytes=self._module.memory_allocated(self.device),
            reserved_bytes=self._module.memory_reserved(self.device),
            total_bytes=self._module.mem_get_info(self.device)[1],
        )

    @contextmanager
    def naming_memory_errors(self) -> Iterator[None]:
        """Map out-of-memory errors of the body to DeviceMemoryError; torch_npu raises a plain
        RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            untracked = self.memory().allocated_bytes - self.ledger.total_bytes()
            reason = str(error).partition("\n")[0]
            raise self.ledger.refusal(reason, untracked_bytes=max(untracked, 0)) from error

    def profiler(self) -> Profiler:
        """Return torch's profiler of all activities that it supports here."""
        return profile()

    def side_stream(self) -> "DeviceStream":
        """Return a new stream of the device."""
        return DeviceStream(self._module)

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Allocate page-locked host memory."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


class DeviceClock:
    """An `IntervalClock` of events in the current stream, which waits for collectives while the host
    continues."""

    def __init__(self, module: DeviceModule) -> None:
        self._module = module

    def mark(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record(self._module.current_stream())
        return event

    def seconds(self, since: Any, until: Any) -> float:
        until.synchronize()
        return float(since.elapsed_time(until)) / 1000


class DeviceStream:
    """A `SideStream` that is a stream of a device."""

    def __init__(self, module: DeviceModule) -> None:
        self._module = module
        self._stream = module.Stream()

    @contextmanager
    def queue(self) -> Iterator[None]:
        """Run work that the body starts on this stream."""
        self._stream.wait_stream(self._module.current_stream())
        with self._module.stream(self._stream):
            yield

    def run(self, work: Callable[[], None]) -> "DeviceMark":
        """Run work that the function starts on this stream; the host continues."""
        with self.queue(), torch.no_grad():
            work()
        return self.mark()

    def mark(self) -> "DeviceMark":
        """Record an event after the work that is queued so far."""
        event = self._module.Event()
        event.record(self._stream)
        return DeviceMark(self._module, event)


class DeviceMark:
    """A `Mark` that is an event of a device."""

    def __init__(self, module: DeviceModule, event: Any) -> None:
        self._module = module
        self._event = event

    def hold_main(self) -> None:
        """Make the current stream wait for the event."""
        self._module.current_stream().wait_event(self._event)

    def wait(self) -> None:
        """Make the host wait for the event."""
        self._event.synchronize()
