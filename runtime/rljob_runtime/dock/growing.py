"""Arrays that grow at their end, by a quarter at least: what rows cost beside their values. Pure."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

FIRST_ROOM = 16
GROWTH = 1.25

Array = NDArray[Any]


class Growing:
    """Columns of one length. fills: by name, type and value of what nobody has set yet."""

    def __init__(self, **fills: tuple[DTypeLike, int]) -> None:
        self.length = 0
        self._room = 0
        self._fills = fills
        self._columns = {name: np.full(0, fill, kind) for name, (kind, fill) in fills.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Array:
        """A column as it is now, of use until the next growth."""
        return self._columns[name][: self.length]

    def widen(self, name: str, kind: DTypeLike, fill: int) -> None:
        """One more column, unless it is there."""
        if name not in self._columns:
            self._fills[name] = (kind, fill)
            self._columns[name] = np.full(self._room, fill, kind)

    def grow(self, length: int) -> None:
        """Make it that long, where it is shorter."""
        if length > self._room:
            room = max(length, FIRST_ROOM, int(GROWTH * self._room))
            for name, (_, fill) in self._fills.items():
                column = self._columns.pop(name)  # whose only name this is now
                try:
                    column.resize(room)
                except ValueError:  # somebody looks at it
                    column = np.concatenate([column, np.zeros(room - len(column), column.dtype)])
                finally:
                    self._columns[name] = column
                column[self._room :] = fill
            self._room = room
        self.length = max(self.length, length)

    def add(self, **columns: Any) -> slice:
        """Put rows behind; columns that are not named get their fill. Returns their places."""
        first = self.length
        self.grow(first + len(next(iter(columns.values()))))
        places = slice(first, self.length)
        for name, values in columns.items():
            self._columns[name][places] = values
        return places
