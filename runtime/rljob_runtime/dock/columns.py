"""Ragged columns, in memory and on the wire: all values in one array, one length a row, no padding.

The client and the servers share this code; a later data path replaces where the bytes lie, not
their form. Values are little-endian, C order; on the wire each column starts at a 64-byte boundary.
"""

# n rows, V values of all rows together

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.frames import Fields, MalformedFrame

ALIGNMENT_BYTES = 64
MAX_VALUES = 1 << 40
JOINED_BYTES = 4 << 10
"""Rows below it are joined before they are sent: a copy costs less than a buffer of its own."""
DTYPES = {
    name: np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "float16", "float32")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""numpy finds a type's name slowly, and every column asks for it."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """One column of n rows.

    values: [V, ...] of bool, uint8, int32, int64, float16, bfloat16 or float32, row after row.
    lengths: int64 [n], values of each row along the first axis; they sum to V.
    Raises ValueError when the two disagree or the type is another.
    """

    values: Array
    lengths: NDArray[np.int64]
    _starts: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.values.dtype not in DTYPE_NAMES:
            raise ValueError(
                f"dtype {self.values.dtype} cannot be a column; use one of {[*DTYPES]}"
            )
        ends = self.lengths.cumsum(dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if self.values.ndim < 1 or total != len(self.values) or _any_negative(self.lengths):
            raise ValueError(
                f"lengths of {len(self.lengths)} rows sum to {total}, values have shape "
                f"{self.values.shape}"
            )
        object.__setattr__(self, "_starts", ends - self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, i: int) -> Array:
        """Values of row i [length, ...], a view."""
        start = int(self._starts[i])
        return self.values[start : start + int(self.lengths[i])]

    def rows(self) -> list[Array]:
        """Values of every row, views."""
        return [self.row(i) for i in range(len(self))]

    def take(self, rows: Sequence[int]) -> "Ragged":
        """A copy of these rows in this order; a row may be taken many times."""
        return Ragged.from_rows([self.row(i) for i in rows], like=self)

    def row_bytes(self) -> list[int]:
        """Bytes of each row's values."""
        each = self.values.itemsize * math.prod(self.values.shape[1:])
        return [length * each for length in self.lengths.tolist()]

    @classmethod
    def from_rows(cls, rows: Sequence[Array], *, like: "Ragged | None" = None) -> "Ragged":
        """Concatenate rows of one type and trailing shape; `like` gives them when there is no row."""
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        if not rows:
            empty = like.values[:0] if like is not None else np.zeros(0, dtype=np.float32)
            return cls(values=empty, lengths=lengths)
        kinds = {(row.dtype, row.shape[1:]) for row in rows}
        if len(kinds) > 1:
            raise ValueError(f"rows of one column differ in type or trailing shape: {kinds}")
        return cls(values=np.concatenate(rows), lengths=lengths)

    @classmethod
    def concatenate(cls, parts: Sequence["Ragged"]) -> "Ragged":
        """The rows of the parts, one part after the other."""
        return cls(
            values=np.concatenate([part.values for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Apart:
    """One column whose rows lie in arrays of their own, as a producer has them; see Ragged."""

    arrays: Sequence[Array]

    def __post_init__(self) -> None:
        kinds = {(array.dtype, array.shape[1:]) for array in self.arrays}
        if len(kinds) != 1:
            raise ValueError(f"rows of one column differ in type or trailing shape: {kinds}")
        if self.arrays[0].dtype not in DTYPE_NAMES or not self.arrays[0].ndim:
            raise ValueError(
                f"dtype {self.arrays[0].dtype} {self.arrays[0].shape} cannot be a column; use "
                f"arrays of one of {[*DTYPES]}"
            )

    @property
    def form(self) -> "Format":
        """What the rows share."""
        return Format(DTYPE_NAMES[self.arrays[0].dtype], self.arrays[0].shape[1:])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Values of each row along the first axis."""
        return np.array([len(array) for array in self.arrays], dtype=np.int64)

    @property
    def num_bytes(self) -> int:
        """Of all rows."""
        return sum(array.nbytes for array in self.arrays)

    def buffers(self) -> list[memoryview]:
        """The bytes of the rows, one after the other; small rows are joined."""
        if self.num_bytes < JOINED_BYTES * len(self.arrays):
            return [as_bytes(np.concatenate(self.arrays))]
        return [as_bytes(array) for array in self.arrays]


@dataclass(frozen=True, slots=True)
class Format:
    """What all rows of one column share: type name and shape of one value."""

    dtype: str
    tail: tuple[int, ...]

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        size = int(DTYPES[self.dtype].itemsize)
        for extent in self.tail:
            size *= extent
        return size

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.tail) if self.tail else ''}"


def format_of(column: Ragged) -> Format:
    """The format of a column's values."""
    return Format(DTYPE_NAMES[column.values.dtype], column.values.shape[1:])


def as_bytes(values: Array) -> memoryview:
    """The bytes of an array, without a copy when it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def descriptor(name: str, form: Format, lengths: NDArray[np.int64]) -> dict[str, Any]:
    """The wire header's entry for one column."""
    packed = lengths.astype("<i8", copy=False).tobytes()
    return {"name": name, "dtype": form.dtype, "tail": list(form.tail), "lengths": packed}


def padding(num_bytes: int) -> bytes:
    """Zero bytes that lead from there to the next column's boundary."""
    return bytes(-num_bytes % ALIGNMENT_BYTES)


def encode_columns(columns: Mapping[str, Ragged | Apart]) -> tuple[list[dict[str, Any]], list[Any]]:
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
    if _any_negative(lengths):
        raise MalformedFrame("a length is negative")
    return lengths


def _any_negative(lengths: NDArray[np.int64]) -> bool:
    return len(lengths) > 0 and int(lengths.min()) < 0
