"""Allocation of spans in one block of bytes. Pure; it does not own the bytes.

An allocation is one aligned span where a hole is large enough, else several of the largest holes. It succeeds
whenever enough bytes are free, however they are distributed. Any part of an allocation can be freed
separately; adjacent holes are merged.
"""

from bisect import bisect_left, bisect_right, insort

from rljob_runtime.dock.wire.memory import Span

ALIGNMENT_BYTES = 64
MAX_CLOSE_FITS = 32
"""Maximum number of holes of almost exactly the size that are checked for a large enough aligned part."""


class Arena:
    """Allocates from `num_bytes`. high_water: end of the highest span that was ever allocated."""

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
        """Return the free spans, by address."""
        return [(start, self._ends[start]) for start in self._starts]

    def allocate(self, num_bytes: int) -> list[Span]:
        """Allocate bytes, which must be free: one span, or several where no hole is large enough."""
        assert num_bytes <= self.free_bytes, f"{num_bytes} of {self.free_bytes} free bytes"
        if not num_bytes:
            return []
        span = self.allocate_contiguous(num_bytes)
        if span is not None:
            return [span]
        spans: list[Span] = []
        while num_bytes:
            size, start = self._by_size[-1]
            span_bytes = min(size, num_bytes)
            spans.append(self._take(start, start, span_bytes))
            num_bytes -= span_bytes
        return spans

    def allocate_contiguous(self, num_bytes: int) -> Span | None:
        """Allocate one span; None where no hole is large enough."""
        start = self._fit(num_bytes)
        return None if start is None else self._take(start, _aligned(start), num_bytes)

    def free(self, span: Span) -> None:
        """Free a span or a part of one."""
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
        """Return the smallest hole that fits so many bytes from an aligned start, the lowest of equals."""
        first = bisect_left(self._by_size, (num_bytes, 0))
        for i in range(first, min(first + MAX_CLOSE_FITS, len(self._by_size))):
            size, start = self._by_size[i]
            if _aligned(start) + num_bytes <= start + size:
                return start
        guaranteed = bisect_left(self._by_size, (num_bytes + ALIGNMENT_BYTES - 1, 0))
        return self._by_size[guaranteed][1] if guaranteed < len(self._by_size) else None

    def _take(self, hole: int, start: int, num_bytes: int) -> Span:
        """Allocate a span of a hole."""
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


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
