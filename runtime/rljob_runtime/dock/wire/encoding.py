"""Columns on the wire and in a warehouse's memory: heads beside raw bytes.

Client and servers share this code. Values are little-endian, C order; in a payload each column starts at a
64-byte boundary.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.bit_sums import row_sums
from rljob_runtime.dock.columns import (
    DTYPES,
    Buffer,
    ChunkedColumn,
    Column,
    Format,
    PackedColumn,
    Ragged,
    ScatteredArrays,
    as_bytes,
    format_of,
    known_format,
)
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import ColumnHead, NewColumn, pack_numbers

ALIGNMENT_BYTES = 64
MAX_VALUES = 1 << 40
NO_COLUMNS: Mapping[str, Column] = {}


def padding(num_bytes: int) -> bytes:
    """Return zero bytes from `num_bytes` to the next column's boundary."""
    return bytes(-num_bytes % ALIGNMENT_BYTES)


def align_up(num_bytes: int) -> int:
    """Return the offset of the next column, after `num_bytes`."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class OutgoingColumns:
    """Columns on their way to a warehouse; except for small rows, only `copy_to` copies values."""

    def __init__(
        self, columns: Mapping[str, Column], group_columns: Mapping[str, Column] = NO_COLUMNS
    ) -> None:
        self._columns = [
            _EncodedColumn.encode(name, column, False) for name, column in columns.items()
        ]
        self._columns += [
            _EncodedColumn.encode(name, group_column, True)
            for name, group_column in group_columns.items()
        ]
        self.num_bytes = sum([align_up(len(encoded.data)) for encoded in self._columns])

    def copy_to(self, target: memoryview) -> list[NewColumn]:
        """Copy the columns to memory in a payload's layout; return their heads."""
        heads, offset = list[NewColumn](), 0
        for column in self._columns:
            end = offset + len(column.data)
            chunk = target[offset:end]
            if isinstance(column.data, ScatteredArrays):
                column.data.copy_to(chunk)
            else:
                chunk[:] = column.data
            heads.append(column.head(row_sums(chunk, column.form.word_bytes, column.sizes)))
            offset = align_up(end)
        return heads

    def payload(self) -> tuple[list[NewColumn], list[memoryview | bytes]]:
        """Return the heads, and the bytes as a list of buffers."""
        heads, buffers = list[NewColumn](), list[memoryview | bytes]()
        for column in self._columns:
            word = column.form.word_bytes
            if isinstance(column.data, ScatteredArrays):
                views = column.data.views()
                size_of = np.array([len(view) for view in views])
                views_with_sizes = zip(views, size_of, strict=True)
                sums = np.concatenate(
                    [row_sums(v, word, n.reshape(1)) for v, n in views_with_sizes]
                )
                buffers += views
            else:
                sums = row_sums(column.data, word, column.sizes)
                buffers.append(column.data)
            heads.append(column.head(sums))
            buffers.append(padding(len(column.data)))
        return heads, buffers


class _EncodedColumn(NamedTuple):
    """A column with its format. sizes: bytes of each row."""

    name: str
    form: Format
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    data: Buffer
    of_groups: bool

    @classmethod
    def encode(cls, name: str, column: Column, of_groups: bool) -> "_EncodedColumn":
        """Return the column with its format and bytes; large scattered arrays are not copied yet.

        of_groups: whether the column has one row per group.
        """
        form = column.form if isinstance(column, ChunkedColumn) else format_of(column)
        data = column.buffer() if isinstance(column, ChunkedColumn) else as_bytes(column.values)
        lengths = column.lengths
        return cls(name, form, lengths, lengths * form.value_bytes, data, of_groups)

    def head(self, sums: NDArray[np.int64]) -> NewColumn:
        """Return the description of the column for a message. sums: checksum of each row, int64 [n]."""
        form = self.form
        return NewColumn(
            name=self.name,
            dtype=form.dtype,
            tail=form.tail,
            lengths=pack_numbers(self.lengths),
            of_groups=self.of_groups,
            sums=pack_numbers(sums),
        )


def decode_columns(heads: Iterable[ColumnHead], payload: memoryview) -> dict[str, Ragged]:
    """Decode columns from heads and payload; the values are views of the payload.

    Raises MalformedFrame when sizes disagree or a type is unknown.
    """
    layouts = _layouts(heads, payload, ALIGNMENT_BYTES)
    return {
        name: _ragged(layout.form, layout.lengths, layout.data) for name, layout in layouts.items()
    }


def decode_packed_columns(
    heads: Sequence[NewColumn], payload: memoryview, *, alignment_bytes: int = ALIGNMENT_BYTES
) -> dict[str, PackedColumn]:
    """Decode columns as they are stored; otherwise like `decode_columns`."""
    layouts = _layouts(heads, payload, alignment_bytes)
    columns: dict[str, PackedColumn] = {}
    for head in heads:
        if len(head.sums) != len(head.lengths):
            raise MalformedFrame(
                f"column {head.name!r} has {len(head.lengths)} bytes of lengths, {len(head.sums)} of "
                "sums"
            )
        form, lengths, data, offset = layouts[head.name]
        columns[head.name] = PackedColumn(form, lengths, data, array("q", head.sums), offset)
    return columns


class _ColumnLayout(NamedTuple):
    """A column in a payload. offset: of its first byte."""

    form: Format
    lengths: list[int]
    data: memoryview
    offset: int


def _layouts(
    heads: Iterable[ColumnHead], payload: memoryview, alignment_bytes: int
) -> dict[str, _ColumnLayout]:
    layouts: dict[str, _ColumnLayout] = {}
    offset = 0
    for head in heads:
        name = head.name
        form, lengths, size = _parse_head(head)
        end = offset + size
        if end > len(payload) or name in layouts:
            raise MalformedFrame(
                f"column {name!r} is there twice or ends at byte {end} of {len(payload)}"
            )
        layouts[name] = _ColumnLayout(form, lengths, payload[offset:end], offset)
        offset = end + -size % alignment_bytes
    if offset != len(payload):
        raise MalformedFrame(f"columns end at byte {offset} of {len(payload)}")
    return layouts


def decode_column(head: ColumnHead, data: memoryview) -> Ragged:
    """Return a column from its head and exactly its bytes; the values are a view of them.

    Raises MalformedFrame.
    """
    form, lengths, size = _parse_head(head)
    if size != len(data):
        raise MalformedFrame(f"column {head.name!r} has {len(data)} bytes, not its lengths'")
    return _ragged(form, lengths, data)


def decode_chunked_column(head: ColumnHead, chunks: Sequence[memoryview]) -> ChunkedColumn:
    """Return a column from its head and its bytes in several chunks.

    Rows are views of their chunk; a row that spans chunks is copied. Raises MalformedFrame.
    """
    form, lengths, size = _parse_head(head)
    if size != sum(map(len, chunks)) or not size:
        raise MalformedFrame(f"column {head.name!r} has other bytes than its lengths'")
    views: list[memoryview] = []
    remaining = [chunk for chunk in reversed(chunks) if len(chunk)]
    row_bytes = 0  # bytes of whole rows at the front of the next chunk
    for num_bytes in [length * form.value_bytes for length in lengths]:
        if remaining and num_bytes and row_bytes == len(remaining[-1]):
            views.append(_take(remaining, row_bytes))
            row_bytes = 0
        if remaining and row_bytes + num_bytes > len(remaining[-1]):
            views += [_take(remaining, row_bytes), _take(remaining, num_bytes)]
            row_bytes = 0
        else:
            row_bytes += num_bytes
    views.append(_take(remaining, row_bytes))
    dtype, tail = DTYPES[form.dtype], form.tail
    arrays = [np.frombuffer(view, dtype=dtype) for view in views if len(view)]
    values_per_row = math.prod(tail)
    return ChunkedColumn(
        [array.reshape(len(array) // values_per_row, *tail) for array in arrays], lengths
    )


def _take(remaining: list[memoryview], num_bytes: int) -> memoryview:
    """Take the next bytes of the chunks, which are in reverse order; a copy where they span chunks."""
    taken: list[memoryview] = []
    while num_bytes:
        chunk = remaining.pop()
        taken.append(chunk[:num_bytes])
        num_bytes -= len(taken[-1])
        if len(taken[-1]) < len(chunk):
            remaining.append(chunk[len(taken[-1]) :])
    return taken[0] if len(taken) == 1 else memoryview(b"".join(taken))


def _ragged(form: Format, lengths: list[int], data: memoryview) -> Ragged:
    values = np.frombuffer(data, dtype=DTYPES[form.dtype])
    shape = (sum(lengths), *form.tail)
    return Ragged(values=values.reshape(shape), lengths=np.array(lengths, dtype=np.int64))


def _parse_head(head: ColumnHead) -> tuple[Format, list[int], int]:
    """Return what a head describes: format, lengths, bytes of all rows.

    Raises MalformedFrame when a type is unknown or a size impossible.
    """
    if head.dtype not in DTYPES:
        raise MalformedFrame(f"column {head.name!r} of type {head.dtype!r} is unknown")
    if len(head.lengths) % 8:
        raise MalformedFrame(f"lengths of {len(head.lengths)} bytes are not 64-bit integers")
    lengths: list[int] = np.frombuffer(head.lengths, dtype="<i8").tolist()
    if min(lengths, default=0) < 0:
        raise MalformedFrame("a length is negative")
    num_values = sum(lengths)  # Python integers do not overflow
    if num_values > MAX_VALUES:
        raise MalformedFrame(f"column {head.name!r} has {num_values} values")
    form = known_format(head.dtype, head.tail)
    return form, lengths, num_values * form.value_bytes
