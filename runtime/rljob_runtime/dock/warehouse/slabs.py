"""Slabs: the columns of one message in one piece of a warehouse's memory, and how long its bytes stay.

`SlabMemory` puts columns into the arena. A slab is given back whole with its last row; rows that are gone
before give their bytes back where room is short. Bytes that a reader has pinned stay as they are until the
last pin goes.
"""

# n rows of a slab

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from rljob_runtime.dock.columns import Format, Packed
from rljob_runtime.dock.warehouse.arena import Arena
from rljob_runtime.dock.wire.memory import Memory, Span

WORD_BYTES = 8
"""A column that is copied begins at a word of its slab: values of every type are aligned then."""


class NoRoom(Exception):
    """The message does not fit now; park it and try again when rows were freed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes do not fit")
        self.num_bytes = num_bytes


class SlabColumn(NamedTuple):
    """A column of a slab, in numbers of 64 bits a row.

    lengths: values along the first axis [n]. starts: bytes from the slab's first to each row, and to the end
    of the last [n + 1]. sums: of the bits of each row, as they came with it [n].
    """

    form: Format
    lengths: "array[int]"
    starts: "array[int]"
    sums: "array[int]"


@dataclass(slots=True, eq=False, kw_only=True)
class Slab:
    """Rows that came with one message.

    spans: where its bytes lie, nearly always one span. live: rows that are not gone. gone: rows that are, and
    whose bytes were not given back. pins: rows that readers look at. left: of the arena, what is still taken.
    """

    spans: list[Span]
    columns: dict[str, SlabColumn]
    live: int
    left: list[Span]
    gone: list[Span] = field(default_factory=list)
    pins: list[Span] = field(default_factory=list)


class Run(NamedTuple):
    """Rows of a slab that follow each other: from `first` to before `last`."""

    slab: Slab
    first: int
    last: int

    def lengths(self, column: str) -> "array[int]":
        """Values of each row."""
        return self.slab.columns[column].lengths[self.first : self.last]

    def total(self, column: str) -> int:
        """Sum of the rows' bits as they came."""
        return sum(self.slab.columns[column].sums[self.first : self.last])

    def spans(self, column: str) -> list[Span]:
        """Where the rows' bytes lie, in order."""
        starts, spans = self.slab.columns[column].starts, self.slab.spans
        start, end = starts[self.first], starts[self.last]
        if start == end:
            return []
        if len(spans) == 1:
            base = spans[0][0]
            return [(base + start, base + end)]
        return [*_cut(spans, start, end)]


@dataclass(slots=True, eq=False)
class Grant:
    """Bytes that one writer fills with the columns of its next message. kept: those that became slabs."""

    span: Span
    kept: list[Span] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """That were granted."""
        return self.span[1] - self.span[0]


class SlabMemory:
    """Slabs of one warehouse. grantable_bytes: of the memory, kept for what writers fill."""

    def __init__(self, memory: Memory, *, grantable_bytes: int = 0) -> None:
        self.memory = memory
        self.arena = Arena(memory.num_bytes)
        self.grantable_bytes = grantable_bytes
        self._waiting: dict[Slab, None] = {}
        """Those with rows that are gone, for others or for readers."""

    @property
    def retained_bytes(self) -> int:
        """Of rows that are gone and that readers look at."""
        return sum(
            sum(column.starts[place + 1] - column.starts[place] for column in slab.columns.values())
            for slab in self._waiting
            for place in _places(slab.gone) & _places(slab.pins)
        )

    def require(self, num_bytes: int) -> None:
        """Raise NoRoom when so many bytes of slabs cannot be stored now."""
        if num_bytes > self.arena.free_bytes - self.grantable_bytes:
            self.reclaim()
        if num_bytes > self.arena.free_bytes - self.grantable_bytes:
            raise NoRoom(num_bytes)

    def store(self, columns: Mapping[str, Packed]) -> Slab:
        """Copy the columns, of which there is one at least; there must be room (`slab_bytes`)."""
        place, places = 0, list[int]()
        for column in columns.values():
            places.append(place)
            place = _aligned(place + len(column.data))
        spans = self.arena.allocate(place)
        self.memory.populate(max([end for _, end in spans], default=0))
        for first, column in zip(places, columns.values(), strict=True):
            self._write(column.data, _cut(spans, first, first + len(column.data)))
        return _slab(spans, columns, places)

    def grant(self, num_bytes: int) -> Grant | None:
        """Take bytes in one piece for a writer, until `settle`; None where there is no such room."""
        fits = 0 < num_bytes <= self.grantable_bytes
        span = self.arena.allocate_whole(num_bytes) if fits else None
        if span is None:
            return None
        self.grantable_bytes -= num_bytes
        self.memory.populate(span[1])
        return Grant(span)

    def adopt(self, columns: Mapping[str, Packed], grant: Grant) -> Slab:
        """Columns that their writer laid there become a slab."""
        base = min([column.place for column in columns.values()])
        end = max([column.place + len(column.data) for column in columns.values()])
        first = grant.span[0]
        kept = [(first + base, first + end)]
        grant.kept += kept
        return _slab(kept, columns, [column.place - base for column in columns.values()])

    def settle(self, grant: Grant) -> None:
        """Its message is done: what did not become slabs is free."""
        self.grantable_bytes += grant.num_bytes
        for span in _without([grant.span], grant.kept):
            self.arena.free(span)

    def _write(self, data: memoryview, spans: Iterable[Span]) -> None:
        view, done = self.memory.view, 0
        for start, end in spans:
            view[start:end] = data[done : done + end - start]
            done += end - start

    def free(self, runs: Iterable[Run]) -> None:
        """Their rows are gone; a slab without rows and without readers is free at once."""
        for slab, first, last in runs:
            slab.live -= last - first
            slab.gone.append((first, last))
            if slab.live or slab.pins:
                self._waiting[slab] = None
            else:
                self._give_back(slab)

    def pin(self, runs: Iterable[Run]) -> None:
        """Keep the bytes as they are until `unpin`, whatever becomes of the rows."""
        for slab, first, last in runs:
            slab.pins.append((first, last))

    def unpin(self, runs: Iterable[Run]) -> bool:
        """Take pins away; True when bytes of gone rows may have become free."""
        freed = False
        for slab, first, last in runs:
            slab.pins.remove((first, last))
            freed |= bool(slab.gone)
            if not (slab.live or slab.pins):
                self._give_back(slab)
        return freed

    def reclaim(self) -> None:
        """Give back the bytes of all rows that are gone and that nobody has pinned."""
        for slab in list(self._waiting):
            gone, pinned = _places(slab.gone), _places(slab.pins)
            spans = [
                span
                for first, last in _runs(sorted(gone - pinned))
                for name in slab.columns
                for span in Run(slab, first, last).spans(name)
            ]
            for span in spans:
                self.arena.free(span)
            slab.left = _without(slab.left, spans)
            slab.gone = _runs(sorted(gone & pinned))
            if not slab.gone:
                del self._waiting[slab]

    def _give_back(self, slab: Slab) -> None:
        for span in slab.left:
            self.arena.free(span)
        slab.left, slab.gone = [], []
        self._waiting.pop(slab, None)


def slab_bytes(columns: Mapping[str, Packed]) -> int:
    """Of the arena, for a slab of these columns."""
    return sum([_aligned(len(column.data)) for column in columns.values()])


def _slab(spans: list[Span], columns: Mapping[str, Packed], places: Iterable[int]) -> Slab:
    """places: where in the spans the columns begin."""
    held = {
        name: SlabColumn(
            column.form,
            array("q", column.lengths),
            array("q", accumulate(column.sizes, initial=place)),
            column.sums,
        )
        for place, (name, column) in zip(places, columns.items(), strict=True)
    }
    rows = len(next(iter(held.values())).lengths)
    return Slab(spans=spans, columns=held, live=rows, left=[*spans])


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in this order, one that begins where the one before ends joined to it."""
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


def _cut(spans: Iterable[Span], start: int, end: int) -> Iterator[Span]:
    """Where bytes `start` to `end` of those that lie in these spans are."""
    for first, last in spans:
        size = last - first
        if start < size and start < end:
            yield first + start, first + min(end, size)
        start, end = max(0, start - size), end - size
        if end <= 0:
            return


def _without(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """The spans but for what was taken out of them."""
    left = list(spans)
    for start, end in taken:
        (place,) = [i for i, (first, last) in enumerate(left) if first <= start and end <= last]
        first, last = left[place]
        left[place : place + 1] = [s for s in ((first, start), (end, last)) if s[0] < s[1]]
    return left


def _places(runs: Iterable[Span]) -> set[int]:
    return {place for first, last in runs for place in range(first, last)}


def _runs(places: Iterable[int]) -> list[Span]:
    return joined((place, place + 1) for place in places)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // WORD_BYTES) * WORD_BYTES
