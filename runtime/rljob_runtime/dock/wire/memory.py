"""The bytes of a warehouse: a memfd that other processes may map, or private memory.

The memfd can neither shrink nor grow, so every map of it stays complete. It has no name in any file system:
it disappears when all its processes end.
"""

import fcntl
import logging
import mmap
import os
import threading

log = logging.getLogger(__name__)

Span = tuple[int, int]
"""A pair: first byte, byte after the last."""

SLICE_BYTES = 1 << 20
"""Bytes that are populated in one step, which takes about a millisecond."""
SIZE_SEALS = 0x1 | 0x2 | 0x4  # no further seals, no shrinking, no growing
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23  # Linux 5.14


class WarehouseMemory:
    """A block of `num_bytes`, rounded up to pages and initially zero.

    shared: as a memfd, where the system supports them; `shareable` is True where it is one.
    """

    def __init__(self, num_bytes: int, *, shared: bool = False) -> None:
        self.num_bytes = max(1, -(-num_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        self.populated_bytes = 0
        self._closed = False
        self._lock = threading.Lock()
        self._descriptor = _memfd(self.num_bytes) if shared else None
        if self._descriptor is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._map = mmap.mmap(-1, self.num_bytes, flags=flags)
        else:
            self._map = mmap.mmap(self._descriptor, self.num_bytes)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, SIZE_SEALS)
        self.view = memoryview(self._map)

    @property
    def shareable(self) -> bool:
        """True while `open_read_only` and `open_writable` work."""
        return self._descriptor is not None

    def open_read_only(self) -> int:
        """Return a new read-only descriptor of the memory; the caller closes it."""
        return self._open(os.O_RDONLY)

    def open_writable(self) -> int:
        """Return a new writable descriptor of the memory; the caller closes it."""
        return self._open(os.O_RDWR)

    def populate(self, end: int) -> None:
        """Populate the pages up to `end`, because a first write would cost several times as much.

        Safe in another thread. Where the system cannot populate pages, the first write does.
        """
        end = min(-(-end // SLICE_BYTES) * SLICE_BYTES, self.num_bytes)
        while self.populated_bytes < end:
            with self._lock:
                start = self.populated_bytes
                size = min(SLICE_BYTES, self.num_bytes - start)
                if size and not self._closed:
                    self._populate(start, size)
                self.populated_bytes = start + size

    def close(self) -> None:
        """Close the descriptor; the memory is freed with its last map."""
        with self._lock:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self, access: int) -> int:
        assert self._descriptor is not None, "this memory is not shared"
        return os.open(f"/proc/self/fd/{self._descriptor}", access | os.O_CLOEXEC)

    def _populate(self, start: int, size: int) -> None:
        try:
            if self._descriptor is not None:
                os.posix_fallocate(self._descriptor, start, size)  # releases the GIL
            self._map.madvise(MADV_POPULATE_WRITE, start, size)
        except OSError as error:
            log.debug("bytes %d+%d of the arena are not present yet: %s", start, size, error)


def _memfd(num_bytes: int) -> int | None:
    """Return a memfd of that size, or None where the system has none."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("rljob-dock", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        log.warning("no shared memory for the dock: %s", error)
        return None
    try:
        os.ftruncate(descriptor, num_bytes)
    except OSError as error:
        os.close(descriptor)
        log.warning("no shared memory of %d bytes for the dock: %s", num_bytes, error)
        return None
    return descriptor
