"""Sums of columns' bits: taken by a warehouse when it stores rows, compared by whoever reads them.

Called by `warehouse.slabs` and `clients.transport`. A sum is over words as wide as the column's type, and
wraps: it changes with any flipped bit, and with whatever happens within one word, which is how memory fails.
Sums of rows add up, and cost a sixth of a CRC-32.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from rljob_runtime.dock.columns import Array, Column

WORDS = {size: np.dtype(f"<i{size}") for size in (1, 2, 4, 8)}


def row_sums(
    data: memoryview, word_bytes: int, starts: Sequence["array[int]"]
) -> list[Sequence[int]]:
    """Of each row of columns of one width, of 64 bits at most. starts: of each column the first byte of
    every row, of which none is empty, and the end of the last; columns are in order, at words."""
    ends = np.frombuffer(b"".join([column.tobytes() for column in starts]), dtype=np.int64)
    places, word = ends // word_bytes, WORDS[word_bytes]
    words = np.frombuffer(data, dtype=word, count=int(places[-1]))
    found = np.add.reduceat(words, places[:-1], dtype=word).tolist()
    sums: list[Sequence[int]] = []
    place = 0
    for column in starts:  # behind each, what lies between it and the next
        sums.append(found[place : place + len(column) - 1])
        place += len(column)
    return sums


def row_sum(data: memoryview, word_bytes: int) -> int:
    """Of one row."""
    return _sum(np.frombuffer(data, dtype=WORDS[word_bytes]))


def fits(column: Column, total: int) -> bool:
    """Whether the sums of its rows add up to that."""
    size = column.arrays[0].itemsize
    found = sum(_sum(array.reshape(-1).view(WORDS[size])) for array in column.arrays)
    return not (total - found) % (1 << 8 * size)


def _sum(words: Array) -> int:
    return int(np.add.reduce(words, dtype=words.dtype))
