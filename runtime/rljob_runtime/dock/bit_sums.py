"""Sums of columns' bits: taken by a warehouse when it stores rows, compared by whoever reads them.

Called by `warehouse.slabs` and `clients.transport`. A sum is over words as wide as the column's type, and
wraps: it changes with any flipped bit, and with whatever happens within one word, which is how memory fails.
Sums of rows add up, and cost a sixth of a CRC-32.
"""

import numpy as np

from rljob_runtime.dock.columns import DTYPES, Array, Column, Packed

WORDS = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}


def row_sums(column: Packed) -> list[int]:
    """Of each row, of 64 bits at most."""
    word = WORDS[DTYPES[column.form.dtype].itemsize]
    words = np.frombuffer(column.data, dtype=word)
    if len(column.lengths) == 1:  # of which a put is to be quick
        return [_sum(words)]
    sizes = np.array(column.sizes, dtype=np.int64) // word.itemsize
    sums = np.zeros(len(sizes), dtype=np.int64)
    filled = sizes.nonzero()[0]
    if len(filled):
        starts = (sizes.cumsum() - sizes)[filled]
        sums[filled] = np.add.reduceat(words, starts, dtype=word)
    listed: list[int] = sums.tolist()
    return listed


def fits(column: Column, total: int) -> bool:
    """Whether the sums of its rows add up to that."""
    size = column.arrays[0].itemsize
    found = sum(_sum(array.reshape(-1).view(WORDS[size])) for array in column.arrays)
    return not (total - found) % (1 << 8 * size)


def _sum(words: Array) -> int:
    return int(np.add.reduce(words, dtype=words.dtype))
