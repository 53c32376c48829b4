"""Columns on the wire and in a warehouse's memory: header entries beside raw bytes.

Client and servers share this code. Values are little-endian, C order; in a payload each column starts
at a 64-byte boundary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.columns import (
    DTYPES,
    Apart,
    Array,
    Column,
    Format,
    Ragged,
    any_negative,
    as_bytes,
    format_of,
)
from rljob_runtime.dock.frames import Fields, MalformedFrame

ALIGNMENT_BYTES = 64
MAX_VALUES = 1 << 40


def descriptor(name: str, form: Format, lengths: NDArray[np.int64]) -> dict[str, Any]:
    """The wire header's entry for one column."""
    packed = lengths.astype("<i8", copy=False).tobytes()
    return {"name": name, "dtype": form.dtype, "tail": list(form.tail), "lengths": packed}


def padding(num_bytes: int) -> bytes:
    """Zero bytes that lead from there to the next column's boundary."""
    return bytes(-num_bytes % ALIGNMENT_BYTES)


def encode_columns(columns: Mapping[str, Column]) -> tuple[list[dict[str, Any]], list[Any]]:
    """Columns as (header entries, payload buffers); values are not copied, but for small rows."""
    entries: list[dict[str, Any]] = []
    buffers: list[Any] = []
    for name, column in columns.items():
        form = column.form if isinstance(column, Apart) else format_of(column)
        entries.append(descriptor(name, form, column.lengths))
        data = column.buffers() if isinstance(column, Apart) else [as_bytes(column.values)]
        buffers += [*data, padding(sum(map(len, data)))]
    return entries, buffers


def decode_columns(entries: Sequence[Fields], payload: memoryview) -> dict[str, Ragged]:
    """Columns from header entries and payload; the values are views of the payload.

    Raises MalformedFrame when sizes disagree or a type is unknown.
    """
    columns: dict[str, Ragged] = {}
    place = 0
    for entry in entries:
        name, shape = entry.text("name"), _Shape.of(entry)
        end = place + shape.num_bytes
        if end > len(payload) or name in columns:
            raise MalformedFrame(
                f"column {name!r} is there twice or ends at byte {end} of {len(payload)}"
            )
        columns[name] = shape.column(payload[place:end])
        place = end + len(padding(end - place))
    if place != len(payload):
        raise MalformedFrame(f"columns end at byte {place} of {len(payload)}")
    return columns


def column_of(entry: Fields, data: memoryview) -> Ragged:
    """A column from its header entry and just its bytes, of which the values are a view.

    Raises MalformedFrame.
    """
    shape = _Shape.of(entry)
    if shape.num_bytes != len(data):
        raise MalformedFrame(
            f"column {entry.text('name')!r} has {len(data)} bytes, not its lengths'"
        )
    return shape.column(data)


def apart_of(entry: Fields, parts: Sequence[memoryview]) -> Apart:
    """A column from its header entry and its bytes in several parts: its rows are views of them, but
    for a row that lies in more than one. Raises MalformedFrame.
    """
    shape = _Shape.of(entry)
    if shape.num_bytes != sum(map(len, parts)) or not len(shape.lengths):
        raise MalformedFrame(f"column {entry.text('name')!r} has other bytes than its lengths'")
    dtype, tail, each = DTYPES[shape.form.dtype], shape.form.tail, shape.form.value_bytes
    rows: list[Array] = []
    left = [part for part in reversed(parts) if len(part)]
    for length in shape.lengths.tolist():
        data = _take(left, length * each)
        rows.append(np.frombuffer(data, dtype=dtype).reshape(length, *tail))
    return Apart(rows)


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


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a header's entry says of its column."""

    form: Format
    lengths: NDArray[np.int64]
    num_values: int

    @property
    def num_bytes(self) -> int:
        return self.num_values * self.form.value_bytes

    def column(self, data: memoryview) -> Ragged:
        """The column of just these bytes."""
        values = np.frombuffer(data, dtype=DTYPES[self.form.dtype])
        shape = (self.num_values, *self.form.tail)
        return Ragged(values=values.reshape(shape), lengths=self.lengths)

    @classmethod
    def of(cls, entry: Fields) -> "_Shape":
        """Raises MalformedFrame when a type is unknown or a size impossible."""
        name, dtype = entry.text("name"), entry.text("dtype")
        tail = tuple(entry.integers("tail"))
        if dtype not in DTYPES or len(tail) > 8 or any(extent < 0 for extent in tail):
            raise MalformedFrame(f"column {name!r} of type {dtype!r} {tail} is unknown")
        lengths = _lengths(entry.binary("lengths"))
        num_values = sum(lengths.tolist())  # which no length makes too large
        if num_values > MAX_VALUES:
            raise MalformedFrame(f"column {name!r} has {num_values} values")
        return cls(Format(dtype, tail), lengths, num_values)


def _lengths(packed: bytes) -> NDArray[np.int64]:
    if len(packed) % 8:
        raise MalformedFrame(f"lengths of {len(packed)} bytes are not 64-bit integers")
    lengths = np.frombuffer(packed, dtype="<i8").astype(np.int64, copy=False)
    if any_negative(lengths):
        raise MalformedFrame("a length is negative")
    return lengths
