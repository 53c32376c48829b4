"""Groups of a batch that each data-parallel rank gets: round robin by index, or balanced by length. Pure.

Used by `BatchLedger`. A share depends on indices and lengths alone, never on when rows arrived.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.controller.balance import balance
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share


class BatchGroups(NamedTuple):
    """Groups in an order: index in the batch, warehouse, index in the shard there; [G] each."""

    index_G: Array
    warehouse_G: Array
    slot_G: Array

    def select(self, selection: Array | slice) -> "BatchGroups":
        """Return the groups that a mask, indices or a slice selects."""
        return BatchGroups(*(values[selection] for values in self))

    def __bool__(self) -> bool:
        return len(self.index_G) > 0


Measure = Callable[[BatchGroups], list[int] | None]
"""A function that returns the values of the needed columns of each group; None while a length is unknown."""


@dataclass(slots=True)
class BatchShares:
    """The shares of one batch.

    A balanced assignment is stored, because rows that are gone have no length any more.
    """

    _ranks: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=dict)

    def groups(
        self, share: Share, groups: BatchGroups, measure: Measure
    ) -> tuple[BatchGroups, bool]:
        """Return the share's groups among those that are left, in order, and whether these are all of them.

        groups: in order of their indices. A balanced share ends before the first window with a row that is
        not ready. All of the batch's rows must be known.
        """
        if not share.window:
            return groups.select(groups.index_G % share.of == share.rank), True
        window_G = groups.index_G // share.window
        selected_G = np.zeros(len(window_G), dtype=bool)
        starts = np.flatnonzero(np.diff(window_G, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(window_G)], strict=True):
            number, members = int(window_G[start]), slice(start, end)
            ranks = self._ranks_of(share, number, groups.select(members), measure)
            if ranks is None:
                return groups.select(selected_G), False
            indexes = groups.index_G[members].tolist()
            selected_G[members] = [ranks[index] == share.rank for index in indexes]
        return groups.select(selected_G), True

    def _ranks_of(
        self, share: Share, number: int, members: BatchGroups, measure: Measure
    ) -> dict[int, int] | None:
        """Return the rank by group index in a window; None while a length is unknown."""
        key = (share.of, share.window, number)
        if key not in self._ranks:
            values = measure(members)
            if values is None:
                return None
            indexes = members.index_G.tolist()
            partitions = balance(values, share.of)
            self._ranks[key] = {
                indexes[i]: rank for rank, partition in enumerate(partitions) for i in partition
            }
        return self._ranks[key]
