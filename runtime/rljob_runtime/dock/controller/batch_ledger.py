"""A controller's view of one batch: its groups and rows, which are ready, and what may be chosen.

Pure bookkeeping under `ControllerLedger`. A choice looks at the rows that it chooses, for a share at all
groups.
"""

# n rows that are chosen, G groups

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.controller.chosen import NO_ROWS, Chosen
from rljob_runtime.dock.controller.lines import NOBODY
from rljob_runtime.dock.controller.part import (
    LACKING,
    LEASED,
    UNKNOWN,
    Part,
)
from rljob_runtime.dock.controller.ready_rows import ReadyRows, of_groups, rows_of
from rljob_runtime.dock.controller.shares import Groups, Shares
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.messages import RowsNotice


@dataclass(slots=True, kw_only=True)
class BatchLedger:
    """One batch. needs: columns without which a row is not ready. total: rows that pass this state; 0 when
    the batch does not.

    known, acked: rows by warehouse since it started, freed ones included. expected: rows that it
    had before it restarted. settled: the state was done before a restart, so nothing is missed.
    missed: names of those that went with a warehouse, until the state is done; what comes after does not
    make up for them. excused: by warehouse, how many of them were put again and acknowledged before the
    warehouse was heard again, which tells of them by number alone.
    """

    name: str
    needs: tuple[str, ...]
    total: int
    dropped: bool = False
    settled: bool = False
    known: Counter[int] = field(default_factory=Counter)
    acked: Counter[int] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    parts: dict[int, Part] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    excused: Counter[int] = field(default_factory=Counter)
    _ready: ReadyRows = field(init=False)
    _shares: Shares = field(default_factory=Shares)
    _in_order: Groups | None = None

    def __post_init__(self) -> None:
        self._ready = ReadyRows(self.parts)

    @property
    def num_known(self) -> int:
        """Rows that warehouses have or had."""
        return self.known.total()

    @property
    def num_rows(self) -> int:
        """Rows that are left."""
        return sum(part.num_rows for part in self.parts.values())

    @property
    def num_ready(self) -> int:
        """Rows that may be claimed."""
        return sum(int(part.groups["ready"].sum()) for part in self.parts.values())

    @property
    def num_lost(self) -> int:
        """Rows that were known before their warehouse restarted and were not put again."""
        if self.settled or not self.expected:
            return 0
        fewer = sum(max(0, count - self.known[w]) for w, count in self.expected.items())
        return max(fewer, len(self.missed) - self.excused.total())

    @property
    def finished(self) -> bool:
        """True when the state has nothing to do here any more."""
        settled = self.settled and not self.num_rows
        return self.dropped or settled or self.acked.total() == self.total

    def count(self, warehouse: int, *, known: int = 0, acked: int = 0) -> None:
        """Add to a warehouse's counts."""
        self.known[warehouse] += known
        self.acked[warehouse] += acked

    def forget_counts(self, warehouse: int, *, lost: bool) -> None:
        """A snapshot of the warehouse follows. lost: it restarted, and holds nothing of old."""
        if lost:
            self.settled = self.finished
            self.expected[warehouse] = max(self.expected[warehouse], self.known[warehouse])
            part = self.parts.pop(warehouse, None)
            self._ready.lost(warehouse)
            self._in_order = None
            self.excused[warehouse] = 0
            if part is not None:
                self.missed.update(part.names.all())
        self.known[warehouse] = self.acked[warehouse] = 0

    def part(self, warehouse: int) -> Part:
        """The batch's rows there."""
        part = self.parts.get(warehouse)
        if part is None:
            part = self.parts[warehouse] = Part(warehouse, self.needs)
        return part

    def add(self, warehouse: int, told: RowsNotice) -> None:
        """New rows. Raises ValueError where the notice contradicts itself or what is known."""
        part = self.part(warehouse)
        place = len(part.names)
        ready = part.add(told)
        if self.missed:
            self.missed.difference_update(part.names.at(np.arange(place, len(part.names))))
        self._in_order = None
        self._ready.add(part, ready)

    def column_came(
        self, warehouse: int, column: str, numbers: Array, lengths: Array, versions: Array
    ) -> None:
        """A needed column of rows is there; rows that are gone need it no more."""
        part = self.part(warehouse)
        self._ready.add(part, part.change(column, numbers, lengths, versions))

    def remove(self, warehouse: int, numbers: Array) -> None:
        """Rows are no more; each was there."""
        part = self.parts[warehouse]
        part.remove(numbers)
        self._ready.add_groups(part, numbers)

    def forget_rows(self) -> None:
        """The state is done: what was kept of rows that are gone."""
        if not self.num_rows:
            self.parts.clear()
            self._ready = ReadyRows(self.parts)
            self._in_order = None

    def leased(self, chosen: Chosen, lease: int) -> None:
        """Ready rows were given to somebody."""
        for warehouse, _, numbers in chosen.pieces:
            part = self.parts[warehouse]
            part.lease(numbers, lease)
            part.rows["attempt"][numbers] += 1

    def returned(self, warehouse: int, numbers: Array) -> None:
        """Leased rows came back; they go first."""
        part = self.parts[warehouse]
        part.give_back(numbers)
        self._ready.add_first(part, numbers)

    def choose(self, limit: int | None, whole_groups: bool, share: Share | None) -> Chosen:
        """Rows for a claim, none when it must wait."""
        if share is not None:
            return self._choose_share(share, limit)
        if whole_groups:
            return self._ready.first_groups(limit)
        return self._ready.first_rows(self.num_ready if limit is None else limit)

    def done(self, share: Share | None) -> bool:
        """True when every row (of the share) was acknowledged."""
        if share is None or self.finished:
            return self.finished
        if self.num_known != self.total:
            return False
        groups, whole = self._of_share(share)
        return whole and not groups

    def reasons(self, share: Share | None) -> list[str]:
        """What keeps rows from being claimed or the batch from being done."""
        lines = []
        if self.num_known < self.total:
            lines.append(f"{self.num_known} of {self.total} rows were put")
        groups = self._left()
        if share is not None:
            found, whole = self._of_share(share)
            groups = found if whole else groups
        for column, count in self.lacking(groups).most_common():
            lines.append(f"{count} of {self.total} rows lack column {column}")
        return lines

    def lacking(self, groups: Groups | None = None) -> Counter[str]:
        """Rows of these groups, of all, that lack each needed column."""
        counts: Counter[str] = Counter()
        for warehouse, part in self.parts.items():
            numbers = part.all_there()
            if groups is not None:
                numbers = part.rows_of(groups.place_G[groups.warehouse_G == warehouse])
            for column in self.needs:
                if count := int((part.lengths(column)[numbers] == UNKNOWN).sum()):
                    counts[column] += count
        return counts

    def next_lacks(self, share: Share | None) -> frozenset[str] | None:
        """Needed columns that the next rows lack, of the share where all rows are known. None: rows are
        still to be put; empty: others hold what is left."""
        known = self.num_known >= self.total
        if share is not None and known:
            found, whole = self._of_share(share)
            groups = found if whole else self._left()
            for warehouse, place in zip(groups.warehouse_G, groups.place_G, strict=True):
                part = self.parts[int(warehouse)]
                if lacks := self._lacks(part, part.rows_of(np.array([place]))):
                    return lacks
        elif share is None:
            for part in self.parts.values():
                first = np.flatnonzero(part.rows["status"] == LACKING)[:1]
                if lacks := self._lacks(part, part.rows_of(part.group_of(first))):
                    return lacks
        return frozenset() if known else None

    def _lacks(self, part: Part, numbers: Array) -> frozenset[str]:
        return frozenset(
            column for column in self.needs if (part.lengths(column)[numbers] == UNKNOWN).any()
        )

    def _choose_share(self, share: Share, limit: int | None) -> Chosen:
        if self.num_known != self.total:
            early = limit is not None and not share.window
            return self._next_in_order(self._first_of(share), limit or 0) if early else NO_ROWS
        groups, whole = self._of_share(share)
        if limit is not None:
            return self._next_in_order(groups, limit)
        if not whole or not self._are_ready(groups).all():
            return NO_ROWS
        return rows_of(self.parts, groups.warehouse_G, groups.place_G)

    def _next_in_order(self, groups: Groups, limit: int) -> Chosen:
        """The groups that follow those that are given, as far as they are ready; at least one whole."""
        ready_G, given_G = self._are_ready(groups), self._given(groups)
        first = int(given_G.argmin()) if not given_G.all() else len(given_G)
        behind = ready_G[first:]
        last = first + (int(behind.argmin()) if not behind.all() else len(behind))
        if first == last:
            return NO_ROWS
        found = groups.only(slice(first, last))
        rows = of_groups(
            self.parts, found.warehouse_G, found.place_G, lambda part, g: part.groups["left"][g]
        ).cumsum()
        number = max(1, int(np.searchsorted(rows, limit, side="right")))
        return rows_of(self.parts, found.warehouse_G[:number], found.place_G[:number])

    def _are_ready(self, groups: Groups) -> Array:
        found = of_groups(self.parts, groups.warehouse_G, groups.place_G, Part.ready_groups)
        return found.astype(bool)

    def _given(self, groups: Groups) -> Array:
        """Which groups' rows, as far as they are left, are all leased."""

        def are_held(part: Part, places: Array) -> Array:
            numbers = part.rows_of(places)
            order = np.repeat(np.arange(len(places)), part.groups["left"][places])
            leased = order[part.rows["status"][numbers] == LEASED]
            counts = np.bincount(leased, minlength=len(places))
            held: Array = counts == part.groups["left"][places]
            return held

        return of_groups(self.parts, groups.warehouse_G, groups.place_G, are_held).astype(bool)

    def _first_of(self, share: Share) -> Groups:
        """The share's groups before the first that is still to come; those that are left of them."""
        told = self._told()
        mine = told.only(told.index_G % share.of == share.rank)
        expected = share.rank + share.of * np.arange(len(mine.index_G))
        there = mine.index_G == expected
        number = int(there.argmin()) if not there.all() else len(there)
        return self._that_are_left(mine.only(slice(0, number)))

    def _of_share(self, share: Share) -> tuple[Groups, bool]:
        return self._shares.groups(share, self._left(), self._values)

    def _values(self, groups: Groups) -> list[int] | None:
        """Values of the needed columns of each group's rows; None while a row lacks one."""
        found_G = np.zeros(len(groups.index_G), dtype=np.int64)
        for warehouse, part in self.parts.items():
            own = np.flatnonzero(groups.warehouse_G == warehouse)
            numbers = part.rows_of(groups.place_G[own])
            if (part.rows["status"][numbers] == LACKING).any():
                return None
            order = np.repeat(own, part.groups["left"][groups.place_G[own]])
            for column in self.needs:
                np.add.at(found_G, order, part.lengths(column)[numbers])
        values: list[int] = found_G.tolist()
        return values

    def _told(self) -> Groups:
        """All groups that were told of, in order of their numbers."""
        if self._in_order is None:
            index = [part.groups["index"] for part in self.parts.values()]
            index_G = np.concatenate([NOBODY, *index])
            warehouse_G = np.repeat(np.array([*self.parts], dtype=np.int64), [*map(len, index)])
            place_G = np.concatenate([NOBODY, *(np.arange(len(own)) for own in index)])
            order = np.argsort(index_G, kind="stable")
            self._in_order = Groups(index_G, warehouse_G, place_G).only(order)
        return self._in_order

    def _left(self) -> Groups:
        return self._that_are_left(self._told())

    def _that_are_left(self, groups: Groups) -> Groups:
        left = of_groups(
            self.parts, groups.warehouse_G, groups.place_G, lambda part, g: part.groups["left"][g]
        )
        return groups.only(left > 0)


def rows_by_name(
    batches: Iterable[BatchLedger], uids: Sequence[str]
) -> list[tuple[BatchLedger, int, Array]]:
    """Where rows of these names are, of all that are left: batch, warehouse, numbers."""
    wanted, found = set(uids), []
    for batch in batches:
        for warehouse, part in batch.parts.items():
            numbers = part.all_there()
            own = [uid in wanted for uid in part.uids(numbers)]
            if any(own):
                found.append((batch, warehouse, numbers[np.array(own)]))
    return found
