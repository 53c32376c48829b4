"""Backends on a real device: memory that goes and comes, refusals, collectives."""

import pytest
import torch
import torch.distributed as dist
from real_devices import DEVICES, skip_without
from torch._C._distributed_c10d import HashStore

from rljob_runtime.devices.ascend import open_ascend
from rljob_runtime.devices.cuda import CudaBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import DeviceMemoryError

SIZE = 2**26  # bytes


@pytest.fixture(params=DEVICES)
def backend(request):
    name = f"{skip_without(request.param)}:0"
    made = (
        CudaBackend(name=name)
        if request.param == "cuda"
        else open_ascend(name=name, limit_bytes=None)
    )
    made.set_up(seed=1, num_threads=1)
    return made


def test_swapped_weights_leave_the_device_and_return_bitwise(backend):
    before = backend.memory().allocated_bytes
    weights = torch.randn(SIZE // 4, device=backend.device)
    expected = weights.cpu()

    swapped = HostSwap(backend).out([weights])
    swapped.release()
    without = backend.memory().allocated_bytes
    swapped.back()
    swapped.ready()

    assert without - before < SIZE // 8
    assert backend.memory().allocated_bytes - before >= SIZE
    assert weights.cpu().equal(expected)


def test_what_is_computed_last_is_what_is_swapped(backend):
    weights = torch.zeros(SIZE // 4, device=backend.device)
    for _ in range(50):
        weights += 1.0

    swapped = HostSwap(backend).out([weights])
    swapped.release()
    swapped.back()
    swapped.ready()

    assert float(weights.sum()) == 50 * len(weights)


def test_memory_that_the_device_has_not_is_refused_with_what_is_held(backend):
    weights = torch.zeros(SIZE // 4, device=backend.device)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, [weights])

    with (
        pytest.raises(DeviceMemoryError, match=r"out of memory(.|\n)*update weights +67,108,864"),
        backend.naming_memory_errors(),
    ):
        torch.empty(2**48, dtype=torch.uint8, device=backend.device)


def test_a_group_takes_the_backends_options(backend):
    dist.init_process_group(
        backend.collectives,
        store=HashStore(),
        rank=0,
        world_size=1,
        pg_options=backend.group_options(buffer_mib=32),
    )
    try:
        values = torch.ones(4, device=backend.device)
        dist.all_reduce(values)
        assert values.tolist() == [1.0] * 4
    finally:
        dist.destroy_process_group()
