"""Host memory for what leaves a device or comes to one: taken once, page-locked where the device copies.

Called by whoever swaps (`host_swap`, the reshard's `swap`) and by weights that arrive in flight. torch rounds
each page-locked piece up to a power of two: pieces of a model's sizes would take up to twice their bytes, so
they lie together in few blocks, which are nearly full.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from torch import Tensor

Key = TypeVar("Key", bound=Hashable)

ALIGNED = 512
"""Bytes: of what a device copies at its full speed."""
BLOCK_BYTES = 256 * 2**20


class HostArena(Generic[Key]):
    """Room for each key, uint8 [size], for as long as the arena lives.

    make: gives host bytes, such as `Backend.host_buffer`. sizes: bytes by key. num_bytes: of all blocks.
    """

    def __init__(self, make: Callable[[int], Tensor], sizes: Mapping[Key, int]) -> None:
        self.sizes = dict(sizes)
        block = max(BLOCK_BYTES, _power_of_two(max(sizes.values(), default=0)))
        filled: list[int] = []
        places: dict[Key, tuple[int, int]] = {}
        for key in sorted(sizes, key=lambda key: -sizes[key]):  # the largest first leave few gaps
            size = -(-sizes[key] // ALIGNED) * ALIGNED
            fits = (n for n, used in enumerate(filled) if used + size <= block)
            number = next(fits, len(filled))
            filled += [0] if number == len(filled) else []
            places[key] = number, filled[number]
            filled[number] += size
        blocks = [make(used) for used in filled]
        self.num_bytes = sum(filled)
        self._rooms = {
            key: blocks[number][first : first + sizes[key]]
            for key, (number, first) in places.items()
        }

    def __getitem__(self, key: Key) -> Tensor:
        """The key's room."""
        return self._rooms[key]


def _power_of_two(size: int) -> int:
    """The smallest that is not less."""
    return 1 << max(0, size - 1).bit_length()
