"""Columns on the wire and in a warehouse's memory: heads beside raw bytes.

Client and servers share this code. Values are little-endian, C order; in a payload each column starts
at a 64-byte boundary.
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
    Apart,
    Buffer,
    Column,
    Format,
    Packed,
    Ragged,
    Scattered,
    as_bytes,
    format_of,
    known_format,
)
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import ColumnHead, NewColumn, packed

ALIGNMENT_BYTES = 64
MAX_VALUES = 1 << 40
NO_COLUMNS: Mapping[str, Column] = {}


def padding(num_bytes: int) -> bytes:
    """Zero bytes that lead from there to the next column's boundary."""
    return bytes(-num_bytes % ALIGNMENT_BYTES)


def aligned(num_bytes: int) -> int:
    """Where the next column begins."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Outgoing:
    """Columns on their way to a warehouse; but for small rows, values are copied by `copy_to` alone."""

    def __init__(
        self, columns: Mapping[str, Column], group_columns: Mapping[str, Column] = NO_COLUMNS
    ) -> None:
        self._columns = [_Encoded.of(name, column, False) for name, column in columns.items()]
        self._columns += [_Encoded.of(name, own, True) for name, own in group_columns.items()]
        self.num_bytes = sum([aligned(len(own.data)) for own in self._columns])

    def copy_to(self, target: memoryview) -> list[NewColumn]:
        """Lay them there as a payload has them; their heads."""
        heads, place = list[NewColumn](), 0
        for own in self._columns:
            end = place + len(own.data)
            part = target[place:end]
            if isinstance(own.data, Scattered):
                own.data.copy_to(part)
            else:
                part[:] = own.data
            heads.append(own.head(row_sums(part, own.form.word_bytes, own.sizes)))
            place = aligned(end)
        return heads

    def payload(self) -> tuple[list[NewColumn], list[memoryview | bytes]]:
        """Their heads, and their bytes in parts."""
        heads, parts = list[NewColumn](), list[memoryview | bytes]()
        for own in self._columns:
            word = own.form.word_bytes
            if isinstance(own.data, Scattered):
                views = own.data.views()
                size_of = np.array([len(view) for view in views])
                each = zip(views, size_of, strict=True)
                sums = np.concatenate([row_sums(v, word, n.reshape(1)) for v, n in each])
                parts += views
            else:
                sums = row_sums(own.data, word, own.sizes)
                parts.append(own.data)
            heads.append(own.head(sums))
            parts.append(padding(len(own.data)))
        return heads, parts


class _Encoded(NamedTuple):
    """sizes: bytes of each row."""

    name: str
    form: Format
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    data: Buffer
    of_groups: bool

    @classmethod
    def of(cls, name: str, column: Column, of_groups: bool) -> "_Encoded":
        form = column.form if isinstance(column, Apart) else format_of(column)
        data = column.buffer() if isinstance(column, Apart) else as_bytes(column.values)
        lengths = column.lengths
        return cls(name, form, lengths, lengths * form.value_bytes, data, of_groups)

    def head(self, sums: NDArray[np.int64]) -> NewColumn:
        form = self.form
        return NewColumn(
            name=self.name,
            dtype=form.dtype,
            tail=form.tail,
            lengths=packed(self.lengths),
            of_groups=self.of_groups,
            sums=packed(sums),
        )


def decode_columns(heads: Iterable[ColumnHead], payload: memoryview) -> dict[str, Ragged]:
    """Columns from heads and payload; the values are views of the payload.

    Raises MalformedFrame when sizes disagree or a type is unknown.
    """
    parts = _laid_out(heads, payload, ALIGNMENT_BYTES)
    return {name: _ragged(part.form, part.lengths, part.data) for name, part in parts.items()}


def packed_columns(
    heads: Sequence[NewColumn], payload: memoryview, *, alignment_bytes: int = ALIGNMENT_BYTES
) -> dict[str, Packed]:
    """As decode_columns, as they are stored."""
    parts = _laid_out(heads, payload, alignment_bytes)
    columns: dict[str, Packed] = {}
    for head in heads:
        if len(head.sums) != len(head.lengths):
            raise MalformedFrame(
                f"column {head.name!r} has {len(head.lengths)} bytes of lengths, {len(head.sums)} of "
                "sums"
            )
        form, lengths, data, place = parts[head.name]
        columns[head.name] = Packed(form, lengths, data, array("q", head.sums), place)
    return columns


class _Part(NamedTuple):
    """A column in a payload. place: of its first byte."""

    form: Format
    lengths: list[int]
    data: memoryview
    place: int


def _laid_out(
    heads: Iterable[ColumnHead], payload: memoryview, alignment_bytes: int
) -> dict[str, _Part]:
    found: dict[str, _Part] = {}
    place = 0
    for head in heads:
        name = head.name
        form, lengths, size = _described(head)
        end = place + size
        if end > len(payload) or name in found:
            raise MalformedFrame(
                f"column {name!r} is there twice or ends at byte {end} of {len(payload)}"
            )
        found[name] = _Part(form, lengths, payload[place:end], place)
        place = end + -size % alignment_bytes
    if place != len(payload):
        raise MalformedFrame(f"columns end at byte {place} of {len(payload)}")
    return found


def column_of(head: ColumnHead, data: memoryview) -> Ragged:
    """A column from its head and just its bytes, of which the values are a view.

    Raises MalformedFrame.
    """
    form, lengths, size = _described(head)
    if size != len(data):
        raise MalformedFrame(f"column {head.name!r} has {len(data)} bytes, not its lengths'")
    return _ragged(form, lengths, data)


def apart_of(head: ColumnHead, parts: Sequence[memoryview]) -> Apart:
    """A column from its head and its bytes in several parts: the rows of a part are views of
    it, but for a row that lies in more than one. Raises MalformedFrame.
    """
    form, lengths, size = _described(head)
    if size != sum(map(len, parts)) or not size:
        raise MalformedFrame(f"column {head.name!r} has other bytes than its lengths'")
    pieces: list[memoryview] = []
    left = [part for part in reversed(parts) if len(part)]
    whole = 0  # bytes of rows at the front of the next part
    for num_bytes in [length * form.value_bytes for length in lengths]:
        if left and num_bytes and whole == len(left[-1]):
            pieces.append(_take(left, whole))
            whole = 0
        if left and whole + num_bytes > len(left[-1]):
            pieces += [_take(left, whole), _take(left, num_bytes)]
            whole = 0
        else:
            whole += num_bytes
    pieces.append(_take(left, whole))
    dtype, tail = DTYPES[form.dtype], form.tail
    arrays = [np.frombuffer(piece, dtype=dtype) for piece in pieces if len(piece)]
    each = math.prod(tail)
    return Apart([array.reshape(len(array) // each, *tail) for array in arrays], lengths)


def _take(left: list[memoryview], num_bytes: int) -> memoryview:
    """The next bytes of the parts, which are in reverse; a copy where they lie in several."""
    taken: list[memoryview] = []
    while num_bytes:
        part = left.pop()
        taken.append(part[:num_bytes])
        num_bytes -= len(taken[-1])
        if len(taken[-1]) < len(part):
            left.append(part[len(taken[-1]) :])
    return taken[0] if len(taken) == 1 else memoryview(b"".join(taken))


def _ragged(form: Format, lengths: list[int], data: memoryview) -> Ragged:
    values = np.frombuffer(data, dtype=DTYPES[form.dtype])
    shape = (sum(lengths), *form.tail)
    return Ragged(values=values.reshape(shape), lengths=np.array(lengths, dtype=np.int64))


def _described(head: ColumnHead) -> tuple[Format, list[int], int]:
    """What a head says: format, lengths, bytes of all rows.

    Raises MalformedFrame when a type is unknown or a size impossible.
    """
    if head.dtype not in DTYPES:
        raise MalformedFrame(f"column {head.name!r} of type {head.dtype!r} is unknown")
    if len(head.lengths) % 8:
        raise MalformedFrame(f"lengths of {len(head.lengths)} bytes are not 64-bit integers")
    lengths: list[int] = np.frombuffer(head.lengths, dtype="<i8").tolist()
    if min(lengths, default=0) < 0:
        raise MalformedFrame("a length is negative")
    num_values = sum(lengths)  # which no length makes too large
    if num_values > MAX_VALUES:
        raise MalformedFrame(f"column {head.name!r} has {num_values} values")
    form = known_format(head.dtype, head.tail)
    return form, lengths, num_values * form.value_bytes
