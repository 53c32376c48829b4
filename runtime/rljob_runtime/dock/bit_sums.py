"""Checksums of columns: a client computes them when it puts rows, warehouses store them, readers compare
them.

Called by `wire.encoding` and `clients.transport`. A sum is over words as wide as the column's type, and
wraps. It changes with any flipped bit, and with any change within one word, which is how memory fails. Sums
of rows add up, and cost less than the copy that they follow.
"""

import numpy as np

from rljob_runtime.dock.columns import Array, Column

WORDS = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}


def row_sums(data: memoryview | bytes, word_bytes: int, sizes: Array) -> Array:
    """Return the sum of each row of a column, int64 [n]. sizes: bytes of the rows, which are contiguous."""
    words = np.frombuffer(data, dtype=WORDS[word_bytes])
    sums = np.zeros(len(sizes), dtype=np.int64)
    if len(sizes) == 1:
        sums[0] = np.add.reduce(words, dtype=words.dtype)
    elif len(words):
        filled = sizes > 0
        starts = (sizes.cumsum() - sizes)[filled] // word_bytes
        sums[filled] = np.add.reduceat(words, starts, dtype=words.dtype)
    return sums


def matches_sum(column: Column, total: int) -> bool:
    """Return True when the sums of the column's rows add up to `total`."""
    size = column.arrays[0].itemsize
    actual = sum(_sum(array.reshape(-1).view(WORDS[size])) for array in column.arrays)
    return not (total - actual) % (1 << 8 * size)


def _sum(words: Array) -> int:
    return int(np.add.reduce(words, dtype=words.dtype))
