"""Swapping to the host: device bytes go, the same bits come back."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import DeviceMemoryError, WeightsError

MEGABYTE = 2**18  # floats


@pytest.fixture
def backend():
    return CpuBackend(name="emulated:0", limit_bytes=3 * 2**20)


def test_swapped_tensors_hold_no_device_byte_and_return_bitwise(backend):
    weights = [torch.randn(MEGABYTE), torch.randn(MEGABYTE).to(torch.bfloat16)]
    view = weights[0][10:20]
    expected = [tensor.clone() for tensor in weights]
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, weights)

    swapped = HostSwap(backend).out([*weights, view])
    swapped.release()
    held = backend.ledger.total_bytes()
    swapped.back()
    swapped.ready()

    assert held == 0
    assert backend.ledger.total_bytes() == swapped.num_bytes == 6 * MEGABYTE
    assert all(a.equal(b) for a, b in zip(weights, expected, strict=True))
    assert view.equal(expected[0][10:20])


def test_room_of_what_was_swapped_out_can_be_used(backend):
    weights = torch.zeros(2 * MEGABYTE)
    cache = torch.zeros(2 * MEGABYTE)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, [weights])
    with pytest.raises(DeviceMemoryError):
        backend.ledger.track(MemoryKind.KV_CACHE, [cache])

    HostSwap(backend).out([weights]).release()
    backend.ledger.track(MemoryKind.KV_CACHE, [cache])

    assert backend.ledger.total_bytes() == cache.nbytes


@given(bit=st.integers(0, 8 * 4 * 1003 - 1), number=st.integers(0, 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_bit_that_flips_on_the_host_is_refused_where_it_would_be_used(backend, bit, number):
    tensors = [torch.randn(1003), torch.randint(-9, 9, (4012,), dtype=torch.int8)]
    swapped = HostSwap(backend).out(tensors)
    swapped.release()
    swapped._copies[number][1][bit // 8] ^= 1 << bit % 8

    with pytest.raises(WeightsError, match="bits of 1 of 1 tensors"):
        swapped.host_view(tensors[number])
    assert swapped.host_view(tensors[1 - number]) is not None
    swapped.back()
    with pytest.raises(WeightsError, match="bits of 1 of 2 tensors"):
        swapped.ready()
