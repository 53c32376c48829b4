"""Rows that a claim is given, in their order. Pure."""

# n rows

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.growing import Array

ALL = slice(None)


class Chosen(NamedTuple):
    """Rows in an order. pieces: warehouse, places of its rows in the order, and their numbers there."""

    pieces: Sequence[tuple[int, Array | slice, Array]]

    @classmethod
    def of(cls, warehouse_n: Array, number_n: Array) -> "Chosen":
        """Rows of any warehouses, [n] each."""
        found = []
        for warehouse in np.unique(warehouse_n).tolist():
            places = np.flatnonzero(warehouse_n == warehouse)
            found.append((warehouse, places, number_n[places]))
        return cls(found)

    @classmethod
    def of_one(cls, warehouse: int, number_n: Array) -> "Chosen":
        """Rows of one warehouse."""
        return cls([(warehouse, ALL, number_n)] if len(number_n) else ())

    @property
    def num_rows(self) -> int:
        """How many."""
        return sum(len(numbers) for _, _, numbers in self.pieces)


NO_ROWS = Chosen(())
