"""Memory for data that a client reads, reused for a later read once no view of it is left.

The system provides a large array as fresh pages each time, which cost several times what copying into them
does. A training worker reads batches of one size, step after step.
"""

import mmap
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_BYTES = 1 << 20
"""Minimum size of a recycled array; the allocator retains the pages of smaller ones."""
MOST_RETAINED_BYTES = 1 << 30
"""Maximum size retained for later reads, which also is at most the peak size in use."""
MOST_WASTE = 2
"""Maximum ratio of the memory of a read to its size."""


class Recycler:
    """Provides arrays and reuses their memory when the last view of one is gone; safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retained: list[mmap.mmap] = []
        self._returned: deque[mmap.mmap] = deque()
        self._bytes_out = self._most_bytes_out = 0

    @property
    def retained_bytes(self) -> int:
        """The number of bytes retained for later arrays."""
        with self._lock:
            self._reclaim()
            return sum(map(len, self._retained))

    def empty(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return uint8 [num_bytes] of any content. Its memory is reused once no array refers to it."""
        if num_bytes < LEAST_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        with self._lock:
            self._reclaim()
            block = self._fitting(num_bytes) or _fresh(num_bytes)
            self._bytes_out += len(block)
            self._most_bytes_out = max(self._most_bytes_out, self._bytes_out)
            self._trim()
        array = np.frombuffer(block, dtype=np.uint8, count=num_bytes)
        # Views of views have this array as their base. The finalizer may run in any thread, at any time.
        weakref.finalize(array, self._returned.append, block).atexit = False
        return array

    def _reclaim(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._bytes_out -= len(block)
            self._retained.append(block)

    def _fitting(self, num_bytes: int) -> mmap.mmap | None:
        """Remove and return the smallest retained block that is large enough."""
        fitting = [b for b in self._retained if num_bytes <= len(b) <= MOST_WASTE * num_bytes]
        if not fitting:
            return None
        block = min(fitting, key=len)
        self._retained.remove(block)
        return block

    def _trim(self) -> None:
        limit = min(MOST_RETAINED_BYTES, self._most_bytes_out - self._bytes_out)
        excess = sum(map(len, self._retained)) - limit
        while excess > 0:
            excess -= len(self._retained.pop(0))


_SHARED_RECYCLER = Recycler()


def empty(num_bytes: int) -> NDArray[np.uint8]:
    """Return an array of the Recycler that all clients of this process share."""
    return _SHARED_RECYCLER.empty(num_bytes)


def concatenate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return a copy of arrays [n, ...] of one type and trailing shape, concatenated to one array."""
    size = sum([array.nbytes for array in arrays])
    if size < LEAST_BYTES:
        return np.concatenate(arrays)
    first = arrays[0]
    shape = (sum([len(array) for array in arrays]), *first.shape[1:])
    target = empty(size).view(first.dtype).reshape(shape)
    return np.concatenate(arrays, out=target)


def _fresh(num_bytes: int) -> mmap.mmap:
    pages = -(-num_bytes // mmap.PAGESIZE)
    return mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
