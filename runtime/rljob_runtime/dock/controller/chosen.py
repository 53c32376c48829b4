"""Rows that a claim is granted, in order. Pure."""

# n rows

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.growing import Array

ALL = slice(None)


class ChosenRows(NamedTuple):
    """Rows in the order in which they are granted.

    chunks: for each warehouse, the positions of its rows in that order, and their numbers there.
    """

    chunks: Sequence[tuple[int, Array | slice, Array]]

    @classmethod
    def from_rows(cls, warehouse_n: Array, number_n: Array) -> "ChosenRows":
        """Build the selection from rows of any warehouses, [n] each."""
        chunks = []
        for warehouse in np.unique(warehouse_n).tolist():
            positions = np.flatnonzero(warehouse_n == warehouse)
            chunks.append((warehouse, positions, number_n[positions]))
        return cls(chunks)

    @classmethod
    def from_warehouse(cls, warehouse: int, number_n: Array) -> "ChosenRows":
        """Build the selection from rows of one warehouse."""
        return cls([(warehouse, ALL, number_n)] if len(number_n) else ())

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(len(numbers) for _, _, numbers in self.chunks)


NO_ROWS = ChosenRows(())
