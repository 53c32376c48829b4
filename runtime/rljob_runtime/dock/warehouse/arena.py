"""Room in one block of bytes: which spans are taken, which are free. Pure; it holds no bytes.

An allocation is one aligned span where a hole is large enough, else several of the largest holes:
it succeeds whenever enough bytes are free, however they lie. Any part of what was allocated can be
freed by itself; holes that touch become one.
"""

from bisect import bisect_left, bisect_right, insort

from rljob_runtime.dock.wire.memory import Span

ALIGNMENT_BYTES = 64
MAX_CLOSE_FITS = 32
"""Holes of just the size that are looked at for one whose aligned part is large enough."""


class Arena:
    """Allocates from `num_bytes`. high_water: the end of the highest span that was ever taken."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.free_bytes = 0
        self.high_water = 0
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        if num_bytes:
            self._add_hole(0, num_bytes)

    def holes(self) -> list[Span]:
        """What is free, by address."""
        return [(start, self._ends[start]) for start in self._starts]

    def allocate(self, num_bytes: int) -> list[Span]:
        """Take so many bytes, which must be free: one span, or where no hole is large enough, more."""
        assert num_bytes <= self.free_bytes, f"{num_bytes} of {self.free_bytes} free bytes"
        if not num_bytes:
            return []
        whole = self.allocate_whole(num_bytes)
        if whole is not None:
            return [whole]
        spans: list[Span] = []
        while num_bytes:
            size, start = self._by_size[-1]
            part = min(size, num_bytes)
            spans.append(self._take(start, start, part))
            num_bytes -= part
        return spans

    def allocate_whole(self, num_bytes: int) -> Span | None:
        """Take so many bytes as one span; None where no hole is large enough."""
        start = self._fit(num_bytes)
        return None if start is None else self._take(start, _aligned(start), num_bytes)

    def free(self, span: Span) -> None:
        """Give back a span or a part of one."""
        start, end = span
        i = bisect_right(self._starts, start)
        before = self._starts[i - 1] if i else None
        after = self._starts[i] if i < len(self._starts) else None
        assert 0 <= start < end <= self.num_bytes, f"{span} is not in the arena"
        assert before is None or self._ends[before] <= start, f"{span} is free already"
        assert after is None or end <= after, f"{span} is free already"
        if after == end:
            end = self._remove_hole(after)
        if before is not None and self._ends[before] == start:
            self._remove_hole(before)
            start = before
        self._add_hole(start, end)

    def _fit(self, num_bytes: int) -> int | None:
        """The smallest hole that holds so many bytes from an aligned start, the lowest of equals."""
        first = bisect_left(self._by_size, (num_bytes, 0))
        for i in range(first, min(first + MAX_CLOSE_FITS, len(self._by_size))):
            size, start = self._by_size[i]
            if _aligned(start) + num_bytes <= start + size:
                return start
        sure = bisect_left(self._by_size, (num_bytes + ALIGNMENT_BYTES - 1, 0))
        return self._by_size[sure][1] if sure < len(self._by_size) else None

    def _take(self, hole: int, start: int, num_bytes: int) -> Span:
        """Cut a span out of a hole."""
        hole_end, end = self._remove_hole(hole), start + num_bytes
        if hole < start:
            self._add_hole(hole, start)
        if end < hole_end:
            self._add_hole(end, hole_end)
        self.high_water = max(self.high_water, end)
        return start, end

    def _add_hole(self, start: int, end: int) -> None:
        insort(self._starts, start)
        insort(self._by_size, (end - start, start))
        self._ends[start] = end
        self.free_bytes += end - start

    def _remove_hole(self, start: int) -> int:
        end = self._ends.pop(start)
        del self._starts[bisect_left(self._starts, start)]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        self.free_bytes -= end - start
        return end


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
