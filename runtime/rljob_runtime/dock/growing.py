"""Arrays that grow at their end, by a quarter at least; the memory that rows need beside their values.
Pure."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

FIRST_ROOM = 16
GROWTH = 1.25

Array = NDArray[Any]


class GrowingTable:
    """Columns of equal length. fills: by name, type and default value."""

    def __init__(self, **fills: tuple[DTypeLike, int]) -> None:
        self.length = 0
        self._room = 0
        self._fills = fills
        self._columns = {name: np.full(0, fill, kind) for name, (kind, fill) in fills.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        """Return a column's current content, valid until the next growth."""
        return self._columns[name][: self.length]

    def widen(self, name: str, kind: DTypeLike, fill: int) -> None:
        """Add a column, unless it exists."""
        if name not in self._columns:
            self._fills[name] = (kind, fill)
            self._columns[name] = np.full(self._room, fill, kind)

    def grow(self, length: int) -> None:
        """Extend the columns to that length, where they are shorter."""
        if length > self._room:
            room = max(length, FIRST_ROOM, int(GROWTH * self._room))
            for name, (_, fill) in self._fills.items():
                column = self._columns.pop(name)  # the only reference to the array
                try:
                    column.resize(room)
                except ValueError:  # another reference to it exists
                    column = np.concatenate([column, np.zeros(room - len(column), column.dtype)])
                finally:
                    self._columns[name] = column
                column[self._room :] = fill
            self._room = room
        self.length = max(self.length, length)

    def add(self, **columns: Any) -> slice:
        """Append rows; columns that are not named get their default. Return the slice of the new rows."""
        first = self.length
        self.grow(first + len(next(iter(columns.values()))))
        new_rows = slice(first, self.length)
        for name, values in columns.items():
            self._columns[name][new_rows] = values
        return new_rows
