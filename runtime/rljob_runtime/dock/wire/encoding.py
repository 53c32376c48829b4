"""Columns on the wire and in a warehouse's memory: heads beside raw bytes.

Client and servers share this code. Values are little-endian, C order; in a payload each column starts
at a 64-byte boundary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.columns import (
    DTYPES,
    Apart,
    Buffer,
    Column,
    Format,
    Packed,
    Ragged,
    as_bytes,
    format_of,
    known_format,
)
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import ColumnHead

ALIGNMENT_BYTES = 64
MAX_VALUES = 1 << 40


def packed(numbers: NDArray[np.int64]) -> bytes:
    """Numbers as messages carry them."""
    return numbers.astype("<i8", copy=False).tobytes()


def padding(num_bytes: int) -> bytes:
    """Zero bytes that lead from there to the next column's boundary."""
    return bytes(-num_bytes % ALIGNMENT_BYTES)


def encode_columns(columns: Mapping[str, Column]) -> tuple[list[ColumnHead], list[Buffer]]:
    """Columns as (heads, payload buffers); values are not copied, but for small rows."""
    heads: list[ColumnHead] = []
    buffers: list[Buffer] = []
    for name, column in columns.items():
        form = column.form if isinstance(column, Apart) else format_of(column)
        lengths = packed(column.lengths)
        heads.append(ColumnHead(name=name, dtype=form.dtype, tail=form.tail, lengths=lengths))
        data = column.buffer() if isinstance(column, Apart) else as_bytes(column.values)
        buffers += [data, padding(len(data))]
    return heads, buffers


def decode_columns(heads: Iterable[ColumnHead], payload: memoryview) -> dict[str, Ragged]:
    """Columns from heads and payload; the values are views of the payload.

    Raises MalformedFrame when sizes disagree or a type is unknown.
    """
    return {name: _ragged(column) for name, column in packed_columns(heads, payload).items()}


def packed_columns(
    heads: Iterable[ColumnHead], payload: memoryview, *, alignment_bytes: int = ALIGNMENT_BYTES
) -> dict[str, Packed]:
    """As decode_columns, as they are stored."""
    columns: dict[str, Packed] = {}
    place = 0
    for head in heads:
        name = head.name
        form, lengths, size = _described(head)
        end = place + size
        if end > len(payload) or name in columns:
            raise MalformedFrame(
                f"column {name!r} is there twice or ends at byte {end} of {len(payload)}"
            )
        columns[name] = Packed(form, lengths, payload[place:end])
        place = end + -size % alignment_bytes
    if place != len(payload):
        raise MalformedFrame(f"columns end at byte {place} of {len(payload)}")
    return columns


def column_of(head: ColumnHead, data: memoryview) -> Ragged:
    """A column from its head and just its bytes, of which the values are a view.

    Raises MalformedFrame.
    """
    form, lengths, size = _described(head)
    if size != len(data):
        raise MalformedFrame(f"column {head.name!r} has {len(data)} bytes, not its lengths'")
    return _ragged(Packed(form, lengths, data))


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


def _ragged(column: Packed) -> Ragged:
    lengths = np.array(column.lengths, dtype=np.int64)
    values = np.frombuffer(column.data, dtype=DTYPES[column.form.dtype])
    shape = (sum(column.lengths), *column.form.tail)
    return Ragged(values=values.reshape(shape), lengths=lengths)


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
