"""Host buffers for copies from and to a device: allocated once, page-locked where the device copies.

Called for swaps (`host_swap`, the reshard's `swap`) and for weights that arrive in flight. torch rounds each
page-locked allocation up to a power of two, so separate buffers would take up to twice their bytes. They
share a few blocks instead, which are nearly full.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from torch import Tensor

Key = TypeVar("Key", bound=Hashable)

ALIGNED = 512
"""Alignment in bytes at which a device copies at full speed."""
BLOCK_BYTES = 256 * 2**20


class HostArena(Generic[Key]):
    """A buffer for each key, uint8 [size], for as long as the arena lives.

    allocate: returns host bytes, such as `Backend.host_buffer`. sizes: bytes by key. num_bytes: of all
    blocks.
    """

    def __init__(self, allocate: Callable[[int], Tensor], sizes: Mapping[Key, int]) -> None:
        self.sizes = dict(sizes)
        block = max(BLOCK_BYTES, _power_of_two(max(sizes.values(), default=0)))
        filled: list[int] = []
        positions: dict[Key, tuple[int, int]] = {}
        for key in sorted(sizes, key=lambda key: -sizes[key]):  # largest first leaves few gaps
            size = -(-sizes[key] // ALIGNED) * ALIGNED
            fitting = (n for n, used in enumerate(filled) if used + size <= block)
            number = next(fitting, len(filled))
            filled += [0] if number == len(filled) else []
            positions[key] = number, filled[number]
            filled[number] += size
        blocks = [allocate(used) for used in filled]
        self.num_bytes = sum(filled)
        self._buffers = {
            key: blocks[number][first : first + sizes[key]]
            for key, (number, first) in positions.items()
        }

    def __getitem__(self, key: Key) -> Tensor:
        """Return the buffer of a key."""
        return self._buffers[key]


def _power_of_two(size: int) -> int:
    """Return the smallest power of two that is not less than the size."""
    return 1 << max(0, size - 1).bit_length()
