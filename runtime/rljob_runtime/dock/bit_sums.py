"""Sums of columns' bits: taken by a client when it puts rows, kept by warehouses, compared by whoever reads.

Called by `wire.encoding` and `clients.transport`. A sum is over words as wide as the column's type, and
wraps: it changes with any flipped bit, and with whatever happens within one word, which is how memory fails.
Sums of rows add up, and cost less than the copy that they follow.
"""

import numpy as np

from rljob_runtime.dock.columns import Array, Column

WORDS = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}


def row_sums(data: memoryview | bytes, word_bytes: int, sizes: Array) -> Array:
    """Of each row of a column, int64 [n]. sizes: bytes of the rows, which lie one behind the other."""
    words = np.frombuffer(data, dtype=WORDS[word_bytes])
    sums = np.zeros(len(sizes), dtype=np.int64)
    if len(sizes) == 1:
        sums[0] = np.add.reduce(words, dtype=words.dtype)
    elif len(words):
        filled = sizes > 0
        starts = (sizes.cumsum() - sizes)[filled] // word_bytes
        sums[filled] = np.add.reduceat(words, starts, dtype=words.dtype)
    return sums


def fits(column: Column, total: int) -> bool:
    """Whether the sums of its rows add up to that."""
    size = column.arrays[0].itemsize
    found = sum(_sum(array.reshape(-1).view(WORDS[size])) for array in column.arrays)
    return not (total - found) % (1 << 8 * size)


def _sum(words: Array) -> int:
    return int(np.add.reduce(words, dtype=words.dtype))
