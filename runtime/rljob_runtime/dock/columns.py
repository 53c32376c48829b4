"""Ragged columns: all values in one array, one length a row, no padding; or rows in separate arrays.

Clients put, read and write columns. `encoding` converts them to the wire format and back.
"""

# n rows, V values of all rows together

import itertools
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.recycled import concatenate

JOINED_BYTES = 4 << 10
"""Average row size below which rows are joined before they are sent: a copy costs less than a separate
buffer."""
DTYPES = {
    name: np.dtype(name) for name in ("bool", "uint8", "int32", "int64", "float16", "float32")
} | {"bfloat16": np.dtype(ml_dtypes.bfloat16)}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""Names by dtype: numpy finds a dtype's name slowly, and every column needs it."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """One column of n rows.

    values: [V, ...] of bool, uint8, int32, int64, float16, bfloat16 or float32, row after row. lengths: int64
    [n], number of values of each row along the first axis; they sum to V. Raises ValueError when the two
    disagree or the type is another.
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
        if self.values.ndim < 1 or total != len(self.values) or any_negative(self.lengths):
            raise ValueError(
                f"lengths of {len(self.lengths)} rows sum to {total}, values have shape "
                f"{self.values.shape}"
            )
        object.__setattr__(self, "_starts", ends - self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """The size of all rows."""
        return int(self.values.nbytes)

    def row(self, i: int) -> Array:
        """Return the values of row i [length, ...], a view."""
        start = int(self._starts[i])
        return self.values[start : start + int(self.lengths[i])]

    def rows(self) -> list[Array]:
        """Return the values of every row, as views."""
        ends = (self._starts + self.lengths).tolist()
        return [self.values[a:b] for a, b in zip(self._starts.tolist(), ends, strict=True)]

    @property
    def arrays(self) -> Sequence[Array]:
        """The arrays that contain the values: one."""
        return [self.values]

    def take(self, rows: Sequence[int]) -> "Ragged":
        """Return a copy of these rows in this order; a row may be taken many times."""
        return Ragged.from_rows([self.row(i) for i in rows], like=self)

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
    def concatenate(cls, columns: Sequence["Ragged"]) -> "Ragged":
        """Concatenate the rows of several columns."""
        return cls(
            values=np.concatenate([column.values for column in columns]),
            lengths=np.concatenate([column.lengths for column in columns]),
        )


class ChunkedColumn:
    """One column of n rows (at least one) in several arrays; otherwise like Ragged.

    arrays: one per row; with `lengths`, each has consecutive whole rows. Raises ValueError when they differ
    in type or trailing shape, or no column can have their type.
    """

    def __init__(self, arrays: Sequence[Array], lengths: Sequence[int] | None = None) -> None:
        kinds = {(array.dtype, array.shape[1:]) for array in arrays}
        if len(kinds) != 1:
            raise ValueError(f"rows of one column differ in type or trailing shape: {kinds}")
        if arrays[0].dtype not in DTYPE_NAMES or not arrays[0].ndim:
            raise ValueError(
                f"dtype {arrays[0].dtype} {arrays[0].shape} cannot be a column; use arrays of one "
                f"of {[*DTYPES]}"
            )
        self._arrays, self._lengths = arrays, lengths

    def __len__(self) -> int:
        return len(self._arrays) if self._lengths is None else len(self._lengths)

    @property
    def arrays(self) -> Sequence[Array]:
        """The arrays that contain the values; they are views."""
        return self._arrays

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of values of each row along the first axis."""
        lengths = self._lengths
        if lengths is None:
            lengths = [len(array) for array in self._arrays]
        return np.array(lengths, dtype=np.int64)

    @property
    def form(self) -> "Format":
        """The format of the rows."""
        return known_format(DTYPE_NAMES[self._arrays[0].dtype], self._arrays[0].shape[1:])

    @property
    def num_bytes(self) -> int:
        """The size of all rows."""
        return sum([array.nbytes for array in self._arrays])

    @cached_property
    def values(self) -> Array:
        """The values of all rows, row after row; a copy that is made at the first use."""
        return concatenate(self._arrays)

    @cached_property
    def _rows(self) -> Sequence[Array]:
        if self._lengths is None:
            return self._arrays
        rows: list[Array] = []
        arrays = iter(self._arrays)
        array, offset = next(arrays), 0
        for length in self._lengths:
            if offset + length > len(array):
                array, offset = next(arrays), 0
            rows.append(array[offset : offset + length])
            offset += length
        return rows

    def row(self, i: int) -> Array:
        """Return the values of row i [length, ...], a view."""
        return self._rows[i]

    def rows(self) -> list[Array]:
        """Return the values of every row, as views."""
        return list(self._rows)

    def buffer(self) -> "Buffer":
        """Return the bytes of the rows, concatenated; large rows are copied later."""
        if self.num_bytes < JOINED_BYTES * len(self._arrays):
            return as_bytes(self.values)
        return ScatteredArrays(self._arrays, self.num_bytes)


class ScatteredArrays:
    """The concatenated bytes of arrays of one type, which are not copied yet."""

    def __init__(self, arrays: Sequence[Array], num_bytes: int) -> None:
        self._arrays, self._num_bytes = arrays, num_bytes

    def __len__(self) -> int:
        return self._num_bytes

    def views(self) -> list[memoryview]:
        """Return the bytes of each array."""
        return [as_bytes(array) for array in self._arrays]

    def copy_to(self, target: memoryview) -> None:
        """Concatenate the arrays into `target` in one call, whatever their number."""
        first = self._arrays[0]
        shape = (sum([len(array) for array in self._arrays]), *first.shape[1:])
        target_array = np.frombuffer(target, dtype=first.dtype).reshape(shape)
        np.concatenate(self._arrays, out=target_array)


Buffer = memoryview | bytes | ScatteredArrays
Column = Ragged | ChunkedColumn


@dataclass(frozen=True, slots=True)
class Format:
    """The format that all rows of one column share: type name and shape of one value.

    value_bytes: size of one value. word_bytes: size of the type.
    """

    dtype: str
    tail: tuple[int, ...]
    value_bytes: int = field(init=False, compare=False)
    word_bytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        word = DTYPES[self.dtype].itemsize
        object.__setattr__(self, "word_bytes", word)
        object.__setattr__(self, "value_bytes", word * math.prod(self.tail))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.tail) if self.tail else ''}"


@dataclass(frozen=True)
class PackedColumn:
    """A column as messages carry it and warehouses store it, without a numpy array.

    lengths: number of values of each row. data: bytes of all rows, concatenated. sums: of the bits of each
    row. offset: of the first byte in the payload or slab.
    """

    form: Format
    lengths: list[int]
    data: memoryview
    sums: "array[int]"
    offset: int = 0

    @cached_property
    def sizes(self) -> list[int]:
        """The size of each row in bytes."""
        value_bytes = self.form.value_bytes
        return [length * value_bytes for length in self.lengths]

    def take(self, rows: Sequence[int]) -> "PackedColumn":
        """Return a copy of these rows, which are in ascending order."""
        ends = [0, *itertools.accumulate(self.sizes)]
        data = b"".join([self.data[ends[i] : ends[i + 1]] for i in rows])
        sums = array("q", [self.sums[i] for i in rows])
        return PackedColumn(self.form, [self.lengths[i] for i in rows], memoryview(data), sums)


@lru_cache(maxsize=1024)
def known_format(dtype: str, tail: tuple[int, ...]) -> Format:
    """Return the format from a cache: few formats exist, and every column of every message needs one."""
    return Format(dtype, tail)


def format_of(column: Ragged) -> Format:
    """Return the format of a column's values."""
    return known_format(DTYPE_NAMES[column.values.dtype], column.values.shape[1:])


def as_bytes(values: Array) -> memoryview:
    """Return the bytes of an array, without a copy when it is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def any_negative(lengths: NDArray[np.int64]) -> bool:
    """Return True when a length is below 0."""
    return len(lengths) > 0 and int(lengths.min()) < 0
