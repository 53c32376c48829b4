"""A controller's view of one batch: its groups and rows, which rows are ready, and which may be granted.

Pure bookkeeping for `ControllerLedger`. Choosing rows looks at those rows only; choosing a share looks at all
groups.
"""

# n chosen rows, G groups

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.controller.chosen import NO_ROWS, ChosenRows
from rljob_runtime.dock.controller.lines import NO_KEYS
from rljob_runtime.dock.controller.part import (
    LACKING,
    LEASED,
    UNKNOWN,
    BatchShard,
)
from rljob_runtime.dock.controller.ready_rows import ReadyRows, map_groups, rows_of
from rljob_runtime.dock.controller.shares import BatchGroups, BatchShares
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.messages import RowsNotice


@dataclass(slots=True, kw_only=True)
class BatchLedger:
    """The state of one batch at a controller.

    needs: columns without which a row is not ready. total: rows that pass this state; 0 when the batch does
    not.

    known, acked: rows by warehouse since it started, freed ones included. expected: rows that a warehouse had
    before it restarted. settled: the state was done before a restart, so no row is missing. missed: names of
    rows that were lost with a warehouse, until the state is done; later rows do not make up for them.
    excused: by warehouse, how many of the missed rows were put again and acknowledged before the warehouse
    reconnected; its snapshot only has their number.
    """

    name: str
    needs: tuple[str, ...]
    total: int
    dropped: bool = False
    settled: bool = False
    known: Counter[int] = field(default_factory=Counter)
    acked: Counter[int] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    shards: dict[int, BatchShard] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    excused: Counter[int] = field(default_factory=Counter)
    _ready: ReadyRows = field(init=False)
    _shares: BatchShares = field(default_factory=BatchShares)
    _in_order: BatchGroups | None = None

    def __post_init__(self) -> None:
        self._ready = ReadyRows(self.shards)

    @property
    def num_known(self) -> int:
        """The number of rows that warehouses store or have stored."""
        return self.known.total()

    @property
    def num_rows(self) -> int:
        """The number of rows that are not gone."""
        return sum(shard.num_rows for shard in self.shards.values())

    @property
    def num_ready(self) -> int:
        """The number of rows that may be claimed."""
        return sum(int(shard.groups["ready"].sum()) for shard in self.shards.values())

    @property
    def num_lost(self) -> int:
        """The number of rows that were known before their warehouse restarted and were not put again."""
        if self.settled or not self.expected:
            return 0
        num_missing = sum(max(0, count - self.known[w]) for w, count in self.expected.items())
        return max(num_missing, len(self.missed) - self.excused.total())

    @property
    def finished(self) -> bool:
        """True when the state has nothing left to do in this batch."""
        settled = self.settled and not self.num_rows
        return self.dropped or settled or self.acked.total() == self.total

    def count(self, warehouse: int, *, known: int = 0, acked: int = 0) -> None:
        """Add to a warehouse's counts."""
        self.known[warehouse] += known
        self.acked[warehouse] += acked

    def forget_counts(self, warehouse: int, *, lost: bool) -> None:
        """Reset a warehouse's counts before its snapshot.

        lost: it restarted without its earlier rows.
        """
        if lost:
            self.settled = self.finished
            self.expected[warehouse] = max(self.expected[warehouse], self.known[warehouse])
            shard = self.shards.pop(warehouse, None)
            self._ready.drop_warehouse(warehouse)
            self._in_order = None
            self.excused[warehouse] = 0
            if shard is not None:
                self.missed.update(shard.names.all())
        self.known[warehouse] = self.acked[warehouse] = 0

    def shard(self, warehouse: int) -> BatchShard:
        """Return the batch's shard in a warehouse; create it where there is none."""
        shard = self.shards.get(warehouse)
        if shard is None:
            shard = self.shards[warehouse] = BatchShard(warehouse, self.needs)
        return shard

    def add(self, warehouse: int, notice: RowsNotice) -> None:
        """Add new rows. Raises ValueError where the notice contradicts itself or the rows that are stored."""
        shard = self.shard(warehouse)
        first_name = len(shard.names)
        ready = shard.add(notice)
        if self.missed:
            self.missed.difference_update(shard.names.at(np.arange(first_name, len(shard.names))))
        self._in_order = None
        self._ready.add(shard, ready)

    def update_column(
        self, warehouse: int, column: str, numbers: Array, lengths: Array, versions: Array
    ) -> None:
        """Record the lengths of a column that arrived for rows; rows that are gone are ignored."""
        shard = self.shard(warehouse)
        self._ready.add(shard, shard.change(column, numbers, lengths, versions))

    def remove(self, warehouse: int, numbers: Array) -> None:
        """Mark rows as gone; each must be present."""
        shard = self.shards[warehouse]
        shard.remove(numbers)
        self._ready.add_groups(shard, numbers)

    def forget_rows(self) -> None:
        """Free the memory of rows that are gone, once the state is done."""
        if not self.num_rows:
            self.shards.clear()
            self._ready = ReadyRows(self.shards)
            self._in_order = None

    def mark_leased(self, chosen: ChosenRows, lease: int) -> None:
        """Mark chosen rows as leased."""
        for warehouse, _, numbers in chosen.chunks:
            shard = self.shards[warehouse]
            shard.lease(numbers, lease)
            shard.rows["attempt"][numbers] += 1

    def mark_returned(self, warehouse: int, numbers: Array) -> None:
        """Make leased rows claimable again, before all others."""
        shard = self.shards[warehouse]
        shard.give_back(numbers)
        self._ready.add_first(shard, numbers)

    def choose(self, limit: int | None, whole_groups: bool, share: Share | None) -> ChosenRows:
        """Return rows for a claim, or none when it must wait."""
        if share is not None:
            return self._choose_share(share, limit)
        if whole_groups:
            return self._ready.first_groups(limit)
        return self._ready.first_rows(self.num_ready if limit is None else limit)

    def done(self, share: Share | None) -> bool:
        """Return True when every row (of the share) was acknowledged."""
        if share is None or self.finished:
            return self.finished
        if self.num_known != self.total:
            return False
        groups, complete = self._share_groups(share)
        return complete and not groups

    def reasons(self, share: Share | None) -> list[str]:
        """Describe what keeps rows from being claimed or the batch from being done."""
        reasons = []
        if self.num_known < self.total:
            reasons.append(f"{self.num_known} of {self.total} rows were put")
        groups = self._remaining_groups()
        if share is not None:
            share_groups, complete = self._share_groups(share)
            groups = share_groups if complete else groups
        for column, count in self.lacking(groups).most_common():
            reasons.append(f"{count} of {self.total} rows lack column {column}")
        return reasons

    def lacking(self, groups: BatchGroups | None = None) -> Counter[str]:
        """Count the rows of these groups (default: all) that lack each needed column."""
        counts: Counter[str] = Counter()
        for warehouse, shard in self.shards.items():
            numbers = shard.all_present()
            if groups is not None:
                numbers = shard.rows_of(groups.slot_G[groups.warehouse_G == warehouse])
            for column in self.needs:
                if count := int((shard.lengths(column)[numbers] == UNKNOWN).sum()):
                    counts[column] += count
        return counts

    def next_missing_columns(self, share: Share | None) -> frozenset[str] | None:
        """Return the needed columns that the next rows lack: the share's, where all rows are known.

        None: rows have yet to be put. Empty: the remaining rows are leased to others.
        """
        known = self.num_known >= self.total
        if share is not None and known:
            share_groups, complete = self._share_groups(share)
            groups = share_groups if complete else self._remaining_groups()
            for warehouse, slot in zip(groups.warehouse_G, groups.slot_G, strict=True):
                shard = self.shards[int(warehouse)]
                if missing := self._missing_columns(shard, shard.rows_of(np.array([slot]))):
                    return missing
        elif share is None:
            for shard in self.shards.values():
                first = np.flatnonzero(shard.rows["status"] == LACKING)[:1]
                if missing := self._missing_columns(shard, shard.rows_of(shard.group_of(first))):
                    return missing
        return frozenset() if known else None

    def _missing_columns(self, shard: BatchShard, numbers: Array) -> frozenset[str]:
        return frozenset(
            column for column in self.needs if (shard.lengths(column)[numbers] == UNKNOWN).any()
        )

    def _choose_share(self, share: Share, limit: int | None) -> ChosenRows:
        if self.num_known != self.total:
            takes_prefix = limit is not None and not share.window
            return (
                self._next_in_order(self._known_prefix(share), limit or 0)
                if takes_prefix
                else NO_ROWS
            )
        groups, complete = self._share_groups(share)
        if limit is not None:
            return self._next_in_order(groups, limit)
        if not complete or not self._are_ready(groups).all():
            return NO_ROWS
        return rows_of(self.shards, groups.warehouse_G, groups.slot_G)

    def _next_in_order(self, groups: BatchGroups, limit: int) -> ChosenRows:
        """Return the ready groups that follow the leased ones, at least one group."""
        ready_G, leased_G = self._are_ready(groups), self._are_leased(groups)
        first = int(leased_G.argmin()) if not leased_G.all() else len(leased_G)
        next_ready_G = ready_G[first:]
        last = first + (int(next_ready_G.argmin()) if not next_ready_G.all() else len(next_ready_G))
        if first == last:
            return NO_ROWS
        granted = groups.select(slice(first, last))
        rows = map_groups(
            self.shards,
            granted.warehouse_G,
            granted.slot_G,
            lambda shard, g: shard.groups["left"][g],
        ).cumsum()
        num_groups = max(1, int(np.searchsorted(rows, limit, side="right")))
        return rows_of(self.shards, granted.warehouse_G[:num_groups], granted.slot_G[:num_groups])

    def _are_ready(self, groups: BatchGroups) -> Array:
        ready_G = map_groups(
            self.shards, groups.warehouse_G, groups.slot_G, BatchShard.ready_groups
        )
        return ready_G.astype(bool)

    def _are_leased(self, groups: BatchGroups) -> Array:
        """Return a mask of the groups whose remaining rows are all leased."""

        def shard_leased(shard: BatchShard, slots: Array) -> Array:
            numbers = shard.rows_of(slots)
            order = np.repeat(np.arange(len(slots)), shard.groups["left"][slots])
            leased_order = order[shard.rows["status"][numbers] == LEASED]
            counts = np.bincount(leased_order, minlength=len(slots))
            all_leased: Array = counts == shard.groups["left"][slots]
            return all_leased

        return map_groups(self.shards, groups.warehouse_G, groups.slot_G, shard_leased).astype(bool)

    def _known_prefix(self, share: Share) -> BatchGroups:
        """Return the share's groups that are not gone, up to the first group that has not been put yet."""
        known = self._known_groups()
        share_groups = known.select(known.index_G % share.of == share.rank)
        expected = share.rank + share.of * np.arange(len(share_groups.index_G))
        present = share_groups.index_G == expected
        length = int(present.argmin()) if not present.all() else len(present)
        return self._with_rows_left(share_groups.select(slice(0, length)))

    def _share_groups(self, share: Share) -> tuple[BatchGroups, bool]:
        return self._shares.groups(share, self._remaining_groups(), self._values)

    def _values(self, groups: BatchGroups) -> list[int] | None:
        """Return the sum of the needed columns' lengths of each group; None while a row lacks one."""
        totals_G = np.zeros(len(groups.index_G), dtype=np.int64)
        for warehouse, shard in self.shards.items():
            indices = np.flatnonzero(groups.warehouse_G == warehouse)
            numbers = shard.rows_of(groups.slot_G[indices])
            if (shard.rows["status"][numbers] == LACKING).any():
                return None
            order = np.repeat(indices, shard.groups["left"][groups.slot_G[indices]])
            for column in self.needs:
                np.add.at(totals_G, order, shard.lengths(column)[numbers])
        values: list[int] = totals_G.tolist()
        return values

    def _known_groups(self) -> BatchGroups:
        """Return all groups that warehouses have announced, in order of their indices."""
        if self._in_order is None:
            index = [shard.groups["index"] for shard in self.shards.values()]
            index_G = np.concatenate([NO_KEYS, *index])
            warehouse_G = np.repeat(np.array([*self.shards], dtype=np.int64), [*map(len, index)])
            slot_G = np.concatenate([NO_KEYS, *(np.arange(len(indices)) for indices in index)])
            order = np.argsort(index_G, kind="stable")
            self._in_order = BatchGroups(index_G, warehouse_G, slot_G).select(order)
        return self._in_order

    def _remaining_groups(self) -> BatchGroups:
        return self._with_rows_left(self._known_groups())

    def _with_rows_left(self, groups: BatchGroups) -> BatchGroups:
        left = map_groups(
            self.shards, groups.warehouse_G, groups.slot_G, lambda shard, g: shard.groups["left"][g]
        )
        return groups.select(left > 0)


def rows_by_name(
    batches: Iterable[BatchLedger], uids: Sequence[str]
) -> list[tuple[BatchLedger, int, Array]]:
    """Locate the rows of these names that are not gone: batch, warehouse, numbers."""
    names, located_rows = set(uids), []
    for batch in batches:
        for warehouse, shard in batch.shards.items():
            numbers = shard.all_present()
            is_named = [uid in names for uid in shard.uids(numbers)]
            if any(is_named):
                located_rows.append((batch, warehouse, numbers[np.array(is_named)]))
    return located_rows
