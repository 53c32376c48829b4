"""Slabs: the columns of one message, stored together in a warehouse's memory, and their lifetime.

`SlabMemory` stores columns in the arena. A slab is freed as a whole with its last row; the bytes of earlier
freed rows are reclaimed when memory is short. Bytes that a reader has pinned do not change until the last pin
is removed.
"""

# n rows of a slab

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from rljob_runtime.dock.columns import Format, PackedColumn
from rljob_runtime.dock.warehouse.arena import Arena
from rljob_runtime.dock.wire.memory import Span, WarehouseMemory

WORD_BYTES = 8
"""Alignment of a copied column in its slab, so that values of every type are aligned."""


class NoRoom(Exception):
    """The message does not fit now; park it and try again when rows were freed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes do not fit")
        self.num_bytes = num_bytes


class SlabColumn(NamedTuple):
    """A column of a slab, with 64-bit numbers for each row.

    lengths: number of values along the first axis [n]. starts: offset of each row in the slab, and of the end
    of the last one [n + 1]. sums: of the bits of each row, as they arrived [n].
    """

    form: Format
    lengths: "array[int]"
    starts: "array[int]"
    sums: "array[int]"


@dataclass(slots=True, eq=False, kw_only=True)
class Slab:
    """Rows that arrived with one message.

    spans: location of its bytes, nearly always one span. live: number of rows that are not gone. allocated:
    spans of the arena that it still occupies. gone: rows that are gone and whose bytes are not reclaimed.
    pins: rows that readers use.
    """

    spans: list[Span]
    columns: dict[str, SlabColumn]
    live: int
    allocated: list[Span]
    gone: list[Span] = field(default_factory=list)
    pins: list[Span] = field(default_factory=list)


class SlabRun(NamedTuple):
    """Consecutive rows of a slab: from `first` to before `last`."""

    slab: Slab
    first: int
    last: int

    def lengths(self, column: str) -> "array[int]":
        """Return the number of values of each row."""
        return self.slab.columns[column].lengths[self.first : self.last]

    def total(self, column: str) -> int:
        """Return the sum of the rows' bits as they arrived."""
        return sum(self.slab.columns[column].sums[self.first : self.last])

    def spans(self, column: str) -> list[Span]:
        """Return the location of the rows' bytes, in order."""
        starts, spans = self.slab.columns[column].starts, self.slab.spans
        start, end = starts[self.first], starts[self.last]
        if start == end:
            return []
        if len(spans) == 1:
            base = spans[0][0]
            return [(base + start, base + end)]
        return [*_sub_spans(spans, start, end)]


@dataclass(slots=True, eq=False)
class GrantedSpan:
    """Bytes that one writer fills with the columns of its next message.

    slab_spans: the parts of it that became slabs.
    """

    span: Span
    slab_spans: list[Span] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """The number of bytes that were granted."""
        return self.span[1] - self.span[0]


class SlabMemory:
    """The slabs of one warehouse. grantable_bytes: of the memory, reserved for what writers fill."""

    def __init__(self, memory: WarehouseMemory, *, grantable_bytes: int = 0) -> None:
        self.memory = memory
        self.arena = Arena(memory.num_bytes)
        self.grantable_bytes = grantable_bytes
        self._reclaimable: dict[Slab, None] = {}
        """Slabs with rows that are gone, while others are live or pinned."""

    @property
    def retained_bytes(self) -> int:
        """The size of rows that are gone and that readers still use."""
        return sum(
            sum(column.starts[row + 1] - column.starts[row] for column in slab.columns.values())
            for slab in self._reclaimable
            for row in _rows_in(slab.gone) & _rows_in(slab.pins)
        )

    def require(self, num_bytes: int) -> None:
        """Raise NoRoom when so many bytes of slabs cannot be stored now."""
        if num_bytes > self.arena.free_bytes - self.grantable_bytes:
            self.reclaim()
        if num_bytes > self.arena.free_bytes - self.grantable_bytes:
            raise NoRoom(num_bytes)

    def store(self, columns: Mapping[str, PackedColumn]) -> Slab:
        """Copy the columns, at least one, into a new slab; there must be room (`slab_bytes`)."""
        offset, offsets = 0, list[int]()
        for column in columns.values():
            offsets.append(offset)
            offset = _aligned(offset + len(column.data))
        spans = self.arena.allocate(offset)
        self.memory.populate(max([end for _, end in spans], default=0))
        for first, column in zip(offsets, columns.values(), strict=True):
            self._write(column.data, _sub_spans(spans, first, first + len(column.data)))
        return _slab(spans, columns, offsets)

    def grant(self, num_bytes: int) -> GrantedSpan | None:
        """Reserve contiguous bytes for a writer, until `settle`; None where there is no such room."""
        fits = 0 < num_bytes <= self.grantable_bytes
        span = self.arena.allocate_contiguous(num_bytes) if fits else None
        if span is None:
            return None
        self.grantable_bytes -= num_bytes
        self.memory.populate(span[1])
        return GrantedSpan(span)

    def adopt(self, columns: Mapping[str, PackedColumn], grant: GrantedSpan) -> Slab:
        """Make a slab of columns that their writer stored in its granted span."""
        base = min([column.offset for column in columns.values()])
        end = max([column.offset + len(column.data) for column in columns.values()])
        first = grant.span[0]
        spans = [(first + base, first + end)]
        grant.slab_spans += spans
        return _slab(spans, columns, [column.offset - base for column in columns.values()])

    def settle(self, grant: GrantedSpan) -> None:
        """End a grant after its message: free what did not become slabs."""
        self.grantable_bytes += grant.num_bytes
        for span in _subtract([grant.span], grant.slab_spans):
            self.arena.free(span)

    def _write(self, data: memoryview, spans: Iterable[Span]) -> None:
        view, written = self.memory.view, 0
        for start, end in spans:
            view[start:end] = data[written : written + end - start]
            written += end - start

    def free(self, runs: Iterable[SlabRun]) -> None:
        """Mark rows as gone; a slab without rows and without readers is freed immediately."""
        for slab, first, last in runs:
            slab.live -= last - first
            slab.gone.append((first, last))
            if slab.live or slab.pins:
                self._reclaimable[slab] = None
            else:
                self._give_back(slab)

    def pin(self, runs: Iterable[SlabRun]) -> None:
        """Protect the rows' bytes from changes until `unpin`, even when the rows are freed."""
        for slab, first, last in runs:
            slab.pins.append((first, last))

    def unpin(self, runs: Iterable[SlabRun]) -> bool:
        """Remove pins; return True when bytes of gone rows may have become free."""
        freed = False
        for slab, first, last in runs:
            slab.pins.remove((first, last))
            freed |= bool(slab.gone)
            if not (slab.live or slab.pins):
                self._give_back(slab)
        return freed

    def reclaim(self) -> None:
        """Free the bytes of all rows that are gone and not pinned."""
        for slab in list(self._reclaimable):
            gone, pinned = _rows_in(slab.gone), _rows_in(slab.pins)
            spans = [
                span
                for first, last in _runs(sorted(gone - pinned))
                for name in slab.columns
                for span in SlabRun(slab, first, last).spans(name)
            ]
            for span in spans:
                self.arena.free(span)
            slab.allocated = _subtract(slab.allocated, spans)
            slab.gone = _runs(sorted(gone & pinned))
            if not slab.gone:
                del self._reclaimable[slab]

    def _give_back(self, slab: Slab) -> None:
        for span in slab.allocated:
            self.arena.free(span)
        slab.allocated, slab.gone = [], []
        self._reclaimable.pop(slab, None)


def slab_bytes(columns: Mapping[str, PackedColumn]) -> int:
    """Return the arena bytes that a slab of these columns needs."""
    return sum([_aligned(len(column.data)) for column in columns.values()])


def _slab(spans: list[Span], columns: Mapping[str, PackedColumn], offsets: Iterable[int]) -> Slab:
    """Build a slab. offsets: where in the spans the columns begin."""
    slab_columns = {
        name: SlabColumn(
            column.form,
            array("q", column.lengths),
            array("q", accumulate(column.sizes, initial=offset)),
            column.sums,
        )
        for offset, (name, column) in zip(offsets, columns.items(), strict=True)
    }
    num_rows = len(next(iter(slab_columns.values())).lengths)
    return Slab(spans=spans, columns=slab_columns, live=num_rows, allocated=[*spans])


def merge_adjacent(spans: Iterable[Span]) -> list[Span]:
    """Merge adjacent spans that touch, in this order."""
    runs: list[Span] = []
    first = last = -1
    for start, end in spans:
        if start == last:
            last = end
            continue
        if last >= 0:
            runs.append((first, last))
        first, last = start, end
    return [*runs, (first, last)] if last >= 0 else runs


def _sub_spans(spans: Iterable[Span], start: int, end: int) -> Iterator[Span]:
    """Yield the location of bytes `start` to `end` of the concatenated spans."""
    for first, last in spans:
        size = last - first
        if start < size and start < end:
            yield first + start, first + min(end, size)
        start, end = max(0, start - size), end - size
        if end <= 0:
            return


def _subtract(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return the spans without what was taken out of them."""
    remaining = list(spans)
    for start, end in removed:
        (index,) = [
            i for i, (first, last) in enumerate(remaining) if first <= start and end <= last
        ]
        first, last = remaining[index]
        remaining[index : index + 1] = [s for s in ((first, start), (end, last)) if s[0] < s[1]]
    return remaining


def _rows_in(runs: Iterable[Span]) -> set[int]:
    return {row for first, last in runs for row in range(first, last)}


def _runs(rows: Iterable[int]) -> list[Span]:
    return merge_adjacent((row, row + 1) for row in rows)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // WORD_BYTES) * WORD_BYTES
