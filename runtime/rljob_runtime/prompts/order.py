"""Order the training items by a seeded permutation that needs no memory, whatever their number."""

import hashlib

from rljob_runtime.samples.seeds import derive_seed

ROUNDS = 6


def item_at(position: int, *, size: int, seed: int, stream: str = "train") -> int:
    """Return the item, below `size`, at a position of a stream. Each pass over the items visits all of
    them once, in another order. seed: that of the run."""
    pass_number, index = divmod(position, size)
    return permute(index, size=size, seed=derive_seed(seed, "order", stream, pass_number))


def permute(position: int, *, size: int, seed: int) -> int:
    """Return the item at `position` of a seeded permutation of range(size).

    Runs a Feistel network over the next even number of bits. Values outside the range are mapped again
    until they fall inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
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
