"""Which groups of a batch a data-parallel rank gets: in turn by number, or balanced by length. Pure.

Used by `BatchLedger`. A share depends on numbers and lengths alone, never on when rows came.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rljob_runtime.dock.controller.balance import balanced
from rljob_runtime.dock.controller.entries import GroupLedger
from rljob_runtime.dock.rows import Share


@dataclass(slots=True)
class Shares:
    """Shares of one batch. What is balanced once stays: rows that are gone have no length any more."""

    _ranks: dict[tuple[int, int, int], dict[int, int]] = field(default_factory=dict)

    def groups(self, share: Share, groups: Iterable[GroupLedger]) -> tuple[list[GroupLedger], bool]:
        """The share's groups out of those that are left, in order, and whether these are all of them.

        Of a balanced share, those of the windows that come before the first with a row that is not
        ready. All of the batch's rows must be known.
        """
        in_order = sorted(groups, key=lambda group: group.index)
        if not share.window:
            return [group for group in in_order if group.index % share.of == share.rank], True
        windows: dict[int, list[GroupLedger]] = {}
        for group in in_order:
            windows.setdefault(group.index // share.window, []).append(group)
        found: list[GroupLedger] = []
        for number, members in windows.items():
            ranks = self._ranks_of(share, number, members)
            if ranks is None:
                return found, False
            found += [group for group in members if ranks[group.index] == share.rank]
        return found, True

    def _ranks_of(
        self, share: Share, number: int, members: list[GroupLedger]
    ) -> dict[int, int] | None:
        """Rank by group's number in a window; None while a length is not known."""
        key = (share.of, share.window, number)
        if key not in self._ranks:
            if any(entry.missing for group in members for entry in group.rows.values()):
                return None
            parts = balanced([group.num_values for group in members], share.of)
            self._ranks[key] = {
                members[i].index: rank for rank, part in enumerate(parts) for i in part
            }
        return self._ranks[key]
