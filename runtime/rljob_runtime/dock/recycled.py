"""Memory for what a client reads: used again for a later read once nobody looks at it any more.

A large array of the system's comes as fresh pages each time, and they cost several times what copying
into them does; a training worker reads batches of one size, step after step.
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
"""Smaller arrays are the allocator's, which keeps their pages by itself."""
MOST_KEPT_BYTES = 1 << 30
"""Kept for later reads; and no more than was looked at at one time."""
MOST_WASTE = 2
"""A read takes memory at most this many times its size."""


class Recycler:
    """Gives out arrays and takes their memory back when the last view of one is gone; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[mmap.mmap] = []
        self._returned: deque[mmap.mmap] = deque()
        self._bytes_out = self._most_bytes_out = 0

    @property
    def kept_bytes(self) -> int:
        """Held for later arrays."""
        with self._lock:
            self._sort_in()
            return sum(map(len, self._kept))

    def empty(self, num_bytes: int) -> NDArray[np.uint8]:
        """uint8 [num_bytes] of any content. Its memory is used again once no array shows it."""
        if num_bytes < LEAST_BYTES:
            return np.empty(num_bytes, dtype=np.uint8)
        with self._lock:
            self._sort_in()
            block = self._fitting(num_bytes) or _fresh(num_bytes)
            self._bytes_out += len(block)
            self._most_bytes_out = max(self._most_bytes_out, self._bytes_out)
            self._forget_some()
        array = np.frombuffer(block, dtype=np.uint8, count=num_bytes)
        # Views of views have this array as their base. The end may come in any thread, at any place.
        weakref.finalize(array, self._returned.append, block).atexit = False
        return array

    def _sort_in(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._bytes_out -= len(block)
            self._kept.append(block)

    def _fitting(self, num_bytes: int) -> mmap.mmap | None:
        """The smallest that is kept and large enough, which is kept no longer."""
        fitting = [b for b in self._kept if num_bytes <= len(b) <= MOST_WASTE * num_bytes]
        if not fitting:
            return None
        block = min(fitting, key=len)
        self._kept.remove(block)
        return block

    def _forget_some(self) -> None:
        limit = min(MOST_KEPT_BYTES, self._most_bytes_out - self._bytes_out)
        excess = sum(map(len, self._kept)) - limit
        while excess > 0:
            excess -= len(self._kept.pop(0))


_OF_THIS_PROCESS = Recycler()


def empty(num_bytes: int) -> NDArray[np.uint8]:
    """Recycler.empty, of the one that all clients of this process share."""
    return _OF_THIS_PROCESS.empty(num_bytes)


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """A copy of arrays [n, ...] of one type and trailing shape, one after the other, as one array."""
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
