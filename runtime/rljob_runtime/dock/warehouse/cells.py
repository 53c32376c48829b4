"""Cells: one row's values of one column, in a warehouse's memory, and how long their bytes stay.

`CellMemory` puts columns into the arena and frees them cell by cell. Bytes that a reader has pinned
stay as they are after their row was freed, until the last pin goes.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.dock.bit_sums import row_sums
from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.warehouse.arena import Arena
from rljob_runtime.dock.wire.memory import Memory, Span


class NoRoom(Exception):
    """The message does not fit now; park it and try again when rows were freed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes do not fit")
        self.num_bytes = num_bytes


@dataclass(slots=True, eq=False)
class Cell:
    """length: values along the first axis. spans: where its bytes lie, nearly always one span.

    total: `row_sums` of them as they came. pins: readers that look at the bytes. freed: its row is gone.
    """

    length: int
    spans: list[Span]
    memory: memoryview
    total: int
    pins: int = 0
    freed: bool = False

    @property
    def data(self) -> bytes:
        """A copy of its bytes."""
        return b"".join(self.memory[start:end] for start, end in self.spans)


Cells = dict[str, Cell]
"""One row's (or group's) cells by column."""


class CellMemory:
    """Cells of one warehouse. retained_bytes: of freed cells that are still pinned."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.arena = Arena(memory.num_bytes)
        self.retained_bytes = 0

    def require(self, num_bytes: int) -> None:
        """Raise NoRoom when so many bytes of cells cannot be stored now."""
        if num_bytes > self.arena.free_bytes:
            raise NoRoom(num_bytes)

    def store(self, columns: Mapping[str, Packed], rows: Sequence[int]) -> list[Cells]:
        """Copy these rows of the columns, which are in ascending order; there must be room.

        Rows that follow each other in a column follow each other in memory, where a hole is large
        enough.
        """
        cells: list[Cells] = [{} for _ in rows]
        for name, column in columns.items():
            lengths, sizes, parts = column.lengths, column.sizes, [column.data]
            totals = row_sums(column)
            if len(rows) < len(lengths):
                parts = _parts(column.data, sizes, rows)
                lengths, sizes = [lengths[i] for i in rows], [sizes[i] for i in rows]
                totals = [totals[i] for i in rows]
            spans = self._write(parts, sum(sizes))
            own = _cut_all(spans, sizes)
            for row, length, places, total in zip(cells, lengths, own, totals, strict=True):
                row[name] = Cell(length, places, self.memory.view, total)
        return cells

    def free(self, cells: Iterable[Cell]) -> None:
        """Their rows are gone; the bytes of those that nobody has pinned are free at once."""
        spans: list[Span] = []
        for cell in cells:
            assert not cell.freed, "a cell was freed twice"
            cell.freed = True
            if cell.pins:
                self.retained_bytes += _size(cell)
            else:
                spans += cell.spans
        self._give_back(spans)

    def pin(self, cells: Iterable[Cell]) -> None:
        """Keep the bytes as they are until `unpin`, whatever becomes of the rows."""
        for cell in cells:
            cell.pins += 1

    def unpin(self, cells: Iterable[Cell]) -> bool:
        """Take a pin away; True when bytes of gone rows became free."""
        spans: list[Span] = []
        for cell in cells:
            cell.pins -= 1
            if cell.freed and not cell.pins:
                self.retained_bytes -= _size(cell)
                spans += cell.spans
        self._give_back(spans)
        return bool(spans)

    def _write(self, parts: Sequence[memoryview], num_bytes: int) -> list[Span]:
        """Copy the parts, one after the other, into newly taken spans."""
        spans = self.arena.allocate(num_bytes)
        self.memory.populate(max((end for _, end in spans), default=0))
        for part, places in zip(parts, _cut_all(spans, [len(p) for p in parts]), strict=True):
            done = 0
            for start, end in places:
                self.memory.view[start:end] = part[done : done + end - start]
                done += end - start
        return spans

    def _give_back(self, spans: list[Span]) -> None:
        """Rows that were written together are mostly freed together: one hole, not one a row."""
        for span in _joined(sorted(spans)):
            self.arena.free(span)


def runs_of(cells: Iterable[Cell]) -> list[Span]:
    """The cells' bytes in order, with neighbours joined."""
    return _joined(span for cell in cells for span in cell.spans)


def _joined(spans: Iterable[Span]) -> list[Span]:
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


def _parts(data: memoryview, sizes: Sequence[int], rows: Sequence[int]) -> list[memoryview]:
    """The bytes of some rows."""
    ends = [0, *itertools.accumulate(sizes)]
    return [data[ends[i] : ends[i + 1]] for i in rows]


def _cut_all(spans: Sequence[Span], sizes: Sequence[int]) -> list[list[Span]]:
    """The spans cut into pieces of these sizes, which fill them."""
    if len(spans) == 1:
        ends = itertools.accumulate(sizes, initial=spans[0][0])
        return [[span] if span[0] < span[1] else [] for span in itertools.pairwise(ends)]
    pieces: list[list[Span]] = []
    left = iter(spans)
    place = last = 0
    for size in sizes:
        piece: list[Span] = []
        while size:
            if place == last:
                place, last = next(left)
            end = min(place + size, last)
            piece.append((place, end))
            size -= end - place
            place = end
        pieces.append(piece)
    return pieces


def _size(cell: Cell) -> int:
    return sum(end - start for start, end in cell.spans)
