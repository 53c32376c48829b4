"""The order of training items: a seeded permutation that needs no memory, whatever its size."""

import hashlib

from rljob_runtime.samples.seeds import derive_seed

ROUNDS = 6


def item_at(position: int, *, size: int, seed: int, stream: str = "train") -> int:
    """The item, below `size`, that a stream has at a position. Each pass over the items has all of them
    once, in another order. seed: of the run."""
    number, place = divmod(position, size)
    return permute(place, size=size, seed=derive_seed(seed, "order", stream, number))


def permute(position: int, *, size: int, seed: int) -> int:
    """The item at `position` of a seeded permutation of range(size).

    A Feistel network over the next even number of bits; values outside the range walk on until
    they fall inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    assert 0 <= position < size, f"position {position} is outside range({size})"
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    value = position
    while True:
        value = _feistel(value, half_bits=half_bits, seed=seed)
        if value < size:
            return value


def _feistel(value: int, *, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for number in range(ROUNDS):
        text = b"%d/%d/%d" % (seed, number, right)
        noise = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        left, right = right, left ^ (noise & mask)
    return left << half_bits | right
