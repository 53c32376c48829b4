"""Forks of this process copy its page tables, 0.1 s a GiB: most of what a test on eight ranks takes."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

HUGE = 2 << 20
"""Bytes of a huge page, of which a page table has one entry in place of 512."""
MADV_COLLAPSE = 25
"""From <linux/mman.h>: move what is in this range to a huge page, now (Linux 6.1; others refuse it)."""

libc = ctypes.CDLL(None)


def shrink_page_tables() -> None:
    """Give freed memory back to the system, and move what is left to huge pages."""
    libc.malloc_trim(0)
    for start, end in _heaps(Path("/proc/self/maps").read_text()):
        for page in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
            libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE), MADV_COLLAPSE)


def _heaps(maps: str) -> Iterator[tuple[int, int]]:
    """Beginning and end of each range of writable memory that is no file's and no stack."""
    for line in maps.splitlines():
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)
