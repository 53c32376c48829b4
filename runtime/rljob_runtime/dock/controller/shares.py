"""Which groups of a batch a data-parallel rank gets: in turn by number, or balanced by length. Pure.

Used by `BatchLedger`. A share depends on numbers and lengths alone, never on when rows came.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.controller.balance import balanced
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share


class Groups(NamedTuple):
    """Groups in an order: number in the batch, warehouse, place in its part; [G] each."""

    index_G: Array
    warehouse_G: Array
    place_G: Array

    def only(self, which: Array | slice) -> "Groups":
        """Those of a mask, at places, or in a row."""
        return Groups(*(values[which] for values in self))

    def __bool__(self) -> bool:
        return len(self.index_G) > 0


Measure = Callable[[Groups], list[int] | None]
"""Values of the needed columns of each group; None while a length is not known."""


@dataclass(slots=True)
class Shares:
    """Shares of one batch. What is balanced once stays: rows that are gone have no length any more."""

    _ranks: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=dict)

    def groups(self, share: Share, groups: Groups, measure: Measure) -> tuple[Groups, bool]:
        """The share's groups out of those that are left, in order, and whether these are all of them.

        groups: in order of their numbers. Of a balanced share, those of the windows that come before the
        first with a row that is not ready. All of the batch's rows must be known.
        """
        if not share.window:
            return groups.only(groups.index_G % share.of == share.rank), True
        window_G = groups.index_G // share.window
        mine_G = np.zeros(len(window_G), dtype=bool)
        starts = np.flatnonzero(np.diff(window_G, prepend=-1)).tolist()
        for start, end in zip(starts, [*starts[1:], len(window_G)], strict=True):
            number, members = int(window_G[start]), slice(start, end)
            ranks = self._ranks_of(share, number, groups.only(members), measure)
            if ranks is None:
                return groups.only(mine_G), False
            indexes = groups.index_G[members].tolist()
            mine_G[members] = [ranks[index] == share.rank for index in indexes]
        return groups.only(mine_G), True

    def _ranks_of(
        self, share: Share, number: int, members: Groups, measure: Measure
    ) -> dict[int, int] | None:
        """Rank by group's number in a window; None while a length is not known."""
        key = (share.of, share.window, number)
        if key not in self._ranks:
            values = measure(members)
            if values is None:
                return None
            indexes = members.index_G.tolist()
            parts = balanced(values, share.of)
            self._ranks[key] = {indexes[i]: rank for rank, part in enumerate(parts) for i in part}
        return self._ranks[key]
