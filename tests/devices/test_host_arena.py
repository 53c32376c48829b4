"""Host memory of what leaves a device: taken once from the backend, in few blocks, and used again."""

import itertools
import random

import pytest
import torch
from torch import Tensor

from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_arena import ALIGNED, BLOCK_BYTES, HostArena
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.weights.reshard.swap import SwappedTensors


class Counting(CpuBackend):
    """A backend that notes what host memory it was asked for, as one that page-locks it would give it."""

    def __init__(self) -> None:
        super().__init__(name="emulated:0")
        self.asked: list[int] = []

    def host_buffer(self, num_bytes: int) -> Tensor:
        self.asked.append(num_bytes)
        return super().host_buffer(num_bytes)


def asked_of(sizes: dict[int, int]) -> list[int]:
    """Bytes of each block, without memory."""
    asked: list[int] = []

    def make(num_bytes: int) -> Tensor:
        asked.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8, device="meta")

    arena = HostArena(make, sizes)
    assert sum(asked) == arena.num_bytes
    assert all(arena[key].numel() == size for key, size in sizes.items())
    return asked


def rounded(sizes: list[int]) -> int:
    """Bytes of page-locked memory, each piece a power of two."""
    return sum(1 << (size - 1).bit_length() for size in sizes)


def test_rooms_do_not_overlap_and_begin_at_aligned_places() -> None:
    rng = random.Random(5)
    sizes = {key: rng.choice([1, 8, 511, 512, 4096, 70_001]) for key in range(60)}
    arena = HostArena(Counting().host_buffer, sizes)

    for key in sizes:
        arena[key].fill_(key)

    assert all(bool((arena[key] == key).all()) for key in sizes)
    assert all(arena[key].storage_offset() % ALIGNED == 0 for key in sizes)
    first = {arena[key].data_ptr() for key in sizes}
    assert len(first) == len(sizes)


def test_a_models_sizes_take_little_more_page_locked_than_they_have() -> None:
    """Qwen2.5-32B's on a tensor rank of 8: an embedding, and of each layer five matrices and two norms."""
    layer = [5120 * 896 * 2, 640 * 5120 * 2, 5120 * 6912 * 2, 3456 * 5120 * 2, 10_240, 10_240]
    tensors = [19_008 * 5120 * 2] * 2 + layer * 64
    sizes = dict(enumerate(tensors))

    asked = asked_of(sizes)

    assert rounded(tensors) > 1.25 * sum(tensors)
    assert rounded(asked) < 1.03 * sum(tensors) + BLOCK_BYTES
    assert sum(asked) < sum(tensors) + ALIGNED * len(tensors)


def test_a_tensor_above_a_block_sets_the_blocks_size() -> None:
    asked = asked_of({0: 3 * BLOCK_BYTES, 1: BLOCK_BYTES, 2: BLOCK_BYTES})

    assert asked == [4 * BLOCK_BYTES, BLOCK_BYTES]
    assert asked_of({}) == []


def test_swapped_weights_take_their_host_memory_once_for_all_steps() -> None:
    backend = Counting()
    weights = {str(n): torch.randn(1000 + n) for n in range(40)}
    expected = {name: tensor.clone() for name, tensor in weights.items()}
    resting = SwappedTensors(weights, backend)

    for _ in range(3):
        for names in itertools.batched(weights, 8) if hasattr(itertools, "batched") else [weights]:
            resting.leave(list(names))()
        for name, tensor in weights.items():
            assert torch.equal(resting.values(tensor), expected[name])
        resting.back()
        resting.ready()

    assert len(backend.asked) == 1
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_that_rest_are_read_on_the_host_from_one_block(dtype: torch.dtype) -> None:
    backend = Counting()
    tensors = [torch.randn(300).to(dtype), torch.randn(7, 5).to(dtype), torch.randn(64).to(dtype)]
    expected = [tensor.clone() for tensor in tensors]

    swapped = HostSwap(backend).out(tensors)
    swapped.release()
    on_host = [swapped.host_view(tensor).clone() for tensor in tensors]
    swapped.back()
    swapped.ready()
    swapped.again()
    swapped.release()

    assert all(torch.equal(a, b) for a, b in zip(on_host, expected, strict=True))
    assert len(backend.asked) == 1
