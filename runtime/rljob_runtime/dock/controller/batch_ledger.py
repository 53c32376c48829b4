"""A controller's view of one batch: its groups and rows, which are ready, and what may be chosen.

Pure bookkeeping under `ControllerLedger`. A choice costs O(rows chosen), for a share O(groups).
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rljob_runtime.dock.controller.entries import Entry, GroupLedger
from rljob_runtime.dock.controller.ready_rows import ReadyRows
from rljob_runtime.dock.controller.shares import Shares
from rljob_runtime.dock.rows import Share

LOOKED_AT = 1024
"""Groups among which a column is looked for that a waiting claim lacks."""


@dataclass(slots=True, kw_only=True)
class BatchLedger:
    """One batch. total: rows that pass this state; 0 when the batch does not.

    known, acked: rows by warehouse since it started, freed ones included. expected: rows that it
    had before it restarted. settled: the state was done before a restart, so nothing is missed.
    gone: numbers of groups that left while others were still to come. put: names of rows by warehouse, until
    the state is done. missed: those that went with a warehouse; what comes after does not make up for
    them.
    """

    name: str
    total: int
    dropped: bool = False
    settled: bool = False
    known: Counter[int] = field(default_factory=Counter)
    acked: Counter[int] = field(default_factory=Counter)
    expected: Counter[int] = field(default_factory=Counter)
    groups: dict[str, GroupLedger] = field(default_factory=dict)
    ready_rows: ReadyRows = field(default_factory=ReadyRows)
    ready_groups: OrderedDict[str, GroupLedger] = field(default_factory=OrderedDict)
    gone: set[int] = field(default_factory=set)
    put: dict[int, set[str]] = field(default_factory=dict)
    missed: set[str] = field(default_factory=set)
    _shares: Shares = field(default_factory=Shares)

    @property
    def num_known(self) -> int:
        """Rows that warehouses have or had."""
        return self.known.total()

    @property
    def num_lost(self) -> int:
        """Rows that were known before their warehouse restarted and were not put again."""
        if self.settled or not self.expected:
            return 0
        fewer = sum(max(0, count - self.known[w]) for w, count in self.expected.items())
        return max(fewer, len(self.missed))

    @property
    def finished(self) -> bool:
        """True when the state has nothing to do here any more."""
        settled = self.settled and not self.groups
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
            self.missed |= self.put.pop(warehouse, set())
        self.known[warehouse] = self.acked[warehouse] = 0

    def add(self, entry: Entry) -> None:
        """A new row."""
        group = self.groups.get(entry.group)
        if group is None:
            group = GroupLedger(index=entry.group_index)
            self.groups[entry.group] = group
        group.rows[entry.uid] = entry
        self.put.setdefault(entry.warehouse, set()).add(entry.uid)
        self.missed.discard(entry.uid)
        if entry.ready:
            self._now_ready(entry)
        else:
            self._sort_in(entry.group)

    def remove(self, entry: Entry) -> None:
        """The row is no more."""
        group = self.groups[entry.group]
        group.num_ready -= entry.ready
        del group.rows[entry.uid]
        self.ready_rows.discard(entry)
        if not group.rows:
            del self.groups[entry.group]
            if self.num_known < self.total:
                self.gone.add(group.index)
        self._sort_in(entry.group)

    def column_came(self, entry: Entry, column: str, length: int) -> None:
        """A needed column of the row is there."""
        entry.lengths[column] = length
        if column in entry.missing:
            entry.missing.discard(column)
            if entry.ready:
                self._now_ready(entry)
        elif entry.packed:
            entry.pack()

    def leased(self, entries: Sequence[Entry], lease: str) -> None:
        """Ready rows were given to somebody. Every claim passes here: kept short."""
        ready_rows, groups, ready_groups = self.ready_rows, self.groups, self.ready_groups
        for entry in entries:
            ready_rows.discard(entry)
            entry.lease = lease
            groups[entry.group].num_ready -= 1
            ready_groups.pop(entry.group, None)

    def returned(self, entry: Entry) -> None:
        """A leased row came back; it goes first."""
        entry.lease = None
        self._now_ready(entry, came_back=True)
        if entry.group in self.ready_groups:
            self.ready_groups.move_to_end(entry.group, last=False)

    def choose(self, limit: int | None, whole_groups: bool, share: Share | None) -> list[Entry]:
        """Rows for a claim, none when it must wait."""
        if share is not None:
            return self._choose_share(share, limit)
        if not whole_groups:
            return self.ready_rows.first(limit)
        chosen: list[Entry] = []
        for group in self.ready_groups.values():
            if chosen and limit is not None and len(chosen) + len(group.rows) > limit:
                break
            chosen += group.in_order()
        return chosen

    def done(self, share: Share | None) -> bool:
        """True when every row (of the share) was acknowledged."""
        if share is None or self.finished:
            return self.finished
        if self.num_known != self.total:
            return False
        groups, whole = self._shares.groups(share, self.groups.values())
        return whole and not groups

    def reasons(self, share: Share | None) -> list[str]:
        """What keeps rows from being claimed or the batch from being done."""
        lines = []
        if self.num_known < self.total:
            lines.append(f"{self.num_known} of {self.total} rows were put")
        lacking: Counter[str] = Counter()
        groups = list(self.groups.values())
        if share is not None:
            found, whole = self._shares.groups(share, groups)
            groups = found if whole else groups
        for group in groups:
            for entry in group.rows.values():
                lacking.update(entry.missing)
        for column, count in lacking.most_common():
            lines.append(f"{count} of {self.total} rows lack column {column}")
        return lines

    def next_lacks(self, share: Share | None) -> frozenset[str] | None:
        """Needed columns that the next rows lack, of the share where all rows are known. None: rows are
        still to be put; empty: others hold what is left."""
        groups: Iterable[GroupLedger] = self.groups.values()
        known = self.num_known >= self.total
        if share is not None and known:
            found, whole = self._shares.groups(share, groups)
            groups = found if whole else groups
        if known or share is None:
            for group in islice(groups, LOOKED_AT):
                lacks = [entry.missing for entry in group.rows.values() if entry.missing]
                if lacks:
                    return frozenset().union(*lacks)
        return frozenset() if known else None

    def _choose_share(self, share: Share, limit: int | None) -> list[Entry]:
        if self.num_known != self.total:
            early = limit is not None and not share.window
            return _next_in_order(self._first_of(share), limit or 0) if early else []
        groups, whole = self._shares.groups(share, self.groups.values())
        if limit is not None:
            return _next_in_order(groups, limit)
        if not whole or not all(group.ready for group in groups):
            return []
        return [entry for group in groups for entry in group.in_order()]

    def _first_of(self, share: Share) -> list[GroupLedger]:
        """The share's groups before the first that is still to come."""
        there = {group.index: group for group in self.groups.values()}
        found: list[GroupLedger] = []
        index = share.rank
        while index in there or index in self.gone:
            found += [there[index]] if index in there else []
            index += share.of
        return found

    def _now_ready(self, entry: Entry, *, came_back: bool = False) -> None:
        entry.pack()
        if came_back:
            self.ready_rows.add_first(entry)
        else:
            self.ready_rows.add(entry)
        self.groups[entry.group].num_ready += 1
        self._sort_in(entry.group)

    def _sort_in(self, name: str) -> None:
        """Keep `ready_groups` true for a group whose rows changed."""
        group = self.groups.get(name)
        if group is None or not group.ready:
            self.ready_groups.pop(name, None)
        elif name not in self.ready_groups:
            self.ready_groups[name] = group


def _next_in_order(groups: Sequence[GroupLedger], limit: int) -> list[Entry]:
    """The groups that follow those that are given, as far as they are ready; at least one whole."""
    chosen: list[Entry] = []
    for group in groups:
        if not chosen and group.given:
            continue
        if not group.ready or (chosen and len(chosen) + len(group.rows) > limit):
            break
        chosen += group.in_order()
    return chosen
