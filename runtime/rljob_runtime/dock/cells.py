"""Cells: one row's values of one column, in a warehouse's memory, and how long their bytes stay.

`CellMemory` puts columns into the arena and frees them cell by cell. Bytes that a reader has pinned
stay as they are after their row was freed, until the last pin goes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.dock.arena import Arena, Span
from rljob_runtime.dock.columns import Ragged, as_bytes
from rljob_runtime.dock.memory import Memory


class NoRoom(Exception):
    """The message does not fit now; park it and try again when rows were freed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes do not fit")
        self.num_bytes = num_bytes


@dataclass(slots=True, eq=False)
class Cell:
    """length: values along the first axis. spans: where its bytes lie, nearly always one span.

    pins: readers that look at the bytes. freed: its row is gone.
    """

    length: int
    spans: list[Span]
    memory: memoryview
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

    def store(self, columns: Mapping[str, Ragged], rows: Sequence[int]) -> list[Cells]:
        """Copy these rows of the columns, in this order; there must be room.

        Rows that follow each other in a column follow each other in memory, where a hole is large
        enough.
        """
        cells: list[Cells] = [{} for _ in rows]
        for name, column in columns.items():
            lengths, sizes = column.lengths.tolist(), column.row_bytes()
            spans = self._write(_bytes_of(column, sizes, rows), sum(sizes[i] for i in rows))
            for row, i in zip(cells, rows, strict=True):
                row[name] = Cell(lengths[i], _cut(spans, sizes[i]), self.memory.view)
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

    def _write(self, parts: Iterable[memoryview], num_bytes: int) -> list[Span]:
        """Copy the parts, one after the other, into newly taken spans."""
        spans = self.arena.allocate(num_bytes)
        self.memory.populate(max((end for _, end in spans), default=0))
        left = list(spans)
        for part in parts:
            place = 0
            for start, end in _cut(left, len(part)):
                self.memory.view[start:end] = part[place : place + end - start]
                place += end - start
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


def _bytes_of(column: Ragged, sizes: Sequence[int], rows: Sequence[int]) -> list[memoryview]:
    """The rows' bytes: all in one part when no row is left out."""
    data = as_bytes(column.values)
    if len(rows) == len(sizes) and all(i == j for i, j in enumerate(rows)):
        return [data]
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [data[ends[i] : ends[i + 1]] for i in rows]


def _cut(spans: list[Span], num_bytes: int) -> list[Span]:
    """Take so many bytes off the front of the spans."""
    taken: list[Span] = []
    while num_bytes:
        start, end = spans[0]
        part = min(end - start, num_bytes)
        taken.append((start, start + part))
        num_bytes -= part
        if part == end - start:
            spans.pop(0)
        else:
            spans[0] = (start + part, end)
    return taken


def _size(cell: Cell) -> int:
    return sum(end - start for start, end in cell.spans)
