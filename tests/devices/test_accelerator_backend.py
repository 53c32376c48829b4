"""Devices that torch drives through a module: what is asked of torch.npu, and what comes of it."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from rljob_runtime.devices.accelerator import AcceleratorBackend
from rljob_runtime.devices.collective_notes import GroupNotes
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.devices.own_time import PassTimer
from rljob_runtime.errors import DeviceMemoryError

CPU = torch.device("cpu")


class FakeModule:
    """In place of torch.npu: one device of 64 bytes, streams that write down what is asked."""

    def __init__(self):
        self.calls = []
        self.allocated = 0
        self.timed = 0

    def set_device(self, device):
        self.calls.append(f"set {device}")

    def manual_seed_all(self, seed):
        self.calls.append(f"seed {seed}")

    def memory_allocated(self, device):
        return self.allocated

    def memory_reserved(self, device):
        return 48

    def mem_get_info(self, device):
        return 16, 64

    def current_stream(self):
        return FakeStream(self, "main")

    def Stream(self):
        return FakeStream(self, "side")

    def Event(self, enable_timing=False):
        event = SimpleNamespace(
            record=lambda stream: self.calls.append(f"event on {stream.name}"),
            synchronize=lambda: self.calls.append("host waits for event"),
        )
        if enable_timing:
            event.number = self.timed = self.timed + 1
            event.elapsed_time = lambda later: 1000.0 * (later.number - event.number)
        return event

    @contextmanager
    def stream(self, stream):
        self.calls.append(f"begin {stream.name}")
        yield
        self.calls.append(f"end {stream.name}")


class FakeStream:
    def __init__(self, module, name):
        self.module, self.name = module, name

    def wait_stream(self, other):
        self.module.calls.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.module.calls.append(f"{self.name} waits for event")


class FakeDevice(AcceleratorBackend):
    collectives = "fake"


@pytest.fixture
def module():
    return FakeModule()


@pytest.fixture
def backend(module):
    return FakeDevice(device=CPU, module=module, name="fake:2")


def test_memory_is_the_allocators_account(backend, module):
    module.allocated = 40

    memory = backend.memory()

    assert (memory.allocated_bytes, memory.reserved_bytes, memory.total_bytes) == (40, 48, 64)


def test_memory_that_the_device_refuses_is_told_with_what_holds_it(backend, module):
    weights = torch.zeros(8)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, [weights])
    module.allocated = 40

    with pytest.raises(DeviceMemoryError) as caught, backend.naming_memory_errors():
        raise RuntimeError("NPU out of memory. Tried to allocate 32.00 B\nstack of C++ frames")

    lines = str(caught.value).splitlines()
    assert lines[0].startswith("device fake:2: NPU out of memory. Tried to allocate 32.00 B; lower")
    assert [line.split()[-2:] for line in lines[2:]] == [["32", "bytes"], ["8", "bytes"]]


def test_other_errors_of_the_device_pass_unchanged(backend):
    with pytest.raises(RuntimeError, match="aicore timeout"), backend.naming_memory_errors():
        raise RuntimeError("aicore timeout")


def test_set_up_repeats_what_the_device_draws(backend, module):
    backend.set_up(seed=5, num_threads=1)

    assert module.calls == ["set cpu", "seed 5"]
    assert torch.get_deterministic_debug_mode() == 1  # warns, as not all operations have a form


def test_own_time_is_the_streams_since_the_host_runs_ahead(backend, module):
    backend.set_up(seed=5, num_threads=1)
    module.calls.clear()
    passes = PassTimer()
    with passes.timed_pass(8), GroupNotes("pair", rank=0, size=2).blocking("all_reduce"):
        module.calls.append("the stream waits")

    ends = ["event on main"] * 2
    assert module.calls == [*ends, "the stream waits", *ends]
    assert (
        passes.seconds() == 2.0
    )  # of three from the first event to the fourth, one in the collective


def test_copies_beside_the_computation_begin_after_it_and_end_before_what_follows(backend, module):
    stream = backend.side_stream()

    with stream.queue():
        module.calls.append("copy")
    mark = stream.mark()
    mark.hold_main()
    mark.wait()

    assert module.calls == [
        "side waits for main",
        "begin side",
        "copy",
        "end side",
        "event on side",
        "main waits for event",
        "host waits for event",
    ]
