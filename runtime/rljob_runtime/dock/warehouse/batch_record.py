"""What a warehouse knows of a batch: arrays by a row's number there, and the slabs that its columns lie in.

Pure. Rows are numbered as they come, those of a group one behind the other. `store` tells what happens.
"""

# n rows of a call by their numbers, each once; G groups by their places

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from rljob_runtime.dock.columns import Format, Packed
from rljob_runtime.dock.growing import Array, Growing
from rljob_runtime.dock.names import Names, PackedNames
from rljob_runtime.dock.warehouse.slabs import Run, Slab
from rljob_runtime.errors import DockRefused

ROW_BYTES = 256
"""Charged for each row beside its columns, so that rows without bytes are bounded too."""
PUT, GROUPS = "(put)", "(groups)"
"""Whose columns lie in a slab: those that rows came with, those of groups; else those that a state wrote."""
NO_SLAB = -1
NO_LEASE = 0


class BatchRecord:
    """A batch's part in one warehouse.

    numbers: of all rows ever put here, by uid. live: how many of them are not gone. acked: how many each
    state has acknowledged, gone ones included. shared: columns that are of groups.
    """

    def __init__(self, name: str, *, total: int, states: Sequence[str]) -> None:
        self.name, self.total, self.states = name, total, tuple(states)
        self.dropped = False
        self.live = 0
        self.numbers: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.formats: dict[str, Format] = {}
        self.shared: frozenset[str] = frozenset()
        self.group_names = Names()
        self.rows = Growing(
            gone=(np.bool, 0),
            group=(np.uint32, 0),
            acks=(np.uint16, 0),
            version=(np.int64, 0),
            charge=(np.int64, 0),
            num_bytes=(np.int64, 0),
        )
        self.groups = Growing(
            first=(np.uint32, 0),
            size=(np.uint32, 0),
            left=(np.uint32, 0),
            index=(np.int64, 0),
            charge=(np.int64, 0),
            slab=(np.int32, NO_SLAB),
            place=(np.uint32, 0),
        )
        self._slabs: dict[int, Slab] = {}
        self._slab_numbers: dict[Slab, int] = {}
        self._next_slab = 0
        self._sources: list[str] = []
        self._leases: dict[str, int] = {}

    @property
    def known(self) -> int:
        """Rows ever put here."""
        return len(self.numbers)

    def live_rows(self) -> Array:
        """Numbers of rows that are not gone."""
        return np.flatnonzero(~self.rows["gone"])

    def uids(self, numbers: Array) -> list[str]:
        """Names of rows."""
        names = list(self.numbers)
        return [names[number] for number in numbers.tolist()]

    def group_at(self, number: int) -> str:
        """Name of a row's group."""
        (name,) = self.group_names.at(self.rows["group"][number : number + 1].astype(np.int64))
        return name

    def add_groups(
        self,
        names: PackedNames,
        *,
        sizes: Array,
        indexes: Array,
        charges: Array,
        slab: Slab | None,
    ) -> Array:
        """New groups, whose rows come next; their places."""
        self.group_names.add(names)
        ends = self.groups["first"][-1:] + self.groups["size"][-1:]
        places = self.groups.add(
            first=int(ends.sum()) + sizes.cumsum() - sizes,
            size=sizes,
            left=sizes,
            index=indexes,
            charge=charges,
        )
        numbers = np.arange(places.start, places.stop)
        self.place(GROUPS, numbers, slab)
        return numbers

    def add_rows(
        self,
        uids: Sequence[str],
        *,
        groups: Array,
        versions: Array,
        charges: Array,
        num_bytes: Array,
        slab: Slab | None,
    ) -> Array:
        """New rows, one behind the other; their numbers."""
        first = self.rows.length
        self.numbers.update(zip(uids, range(first, first + len(uids)), strict=True))
        self.rows.add(group=groups, version=versions, charge=charges, num_bytes=num_bytes)
        self.live += len(uids)
        numbers = np.arange(first, self.rows.length)
        self.place(PUT, numbers, slab)
        return numbers

    def place(self, source: str, numbers: Array, slab: Slab | None) -> None:
        """The rows' columns of that source, or the groups', lie in a slab, in this order. None: there are
        none."""
        if slab is None:
            return
        number = self._keep(slab)
        if source == GROUPS:
            slabs, places = self.groups["slab"], self.groups["place"]
        else:
            names = _names_of(source)
            if source not in self._sources:
                self._sources.append(source)
                self.rows.widen(names[0], np.int32, NO_SLAB)
                self.rows.widen(names[1], np.uint32, 0)
            slabs, places = self.rows[names[0]], self.rows[names[1]]
        slabs[numbers] = number
        places[numbers] = np.arange(len(numbers))

    def acknowledge(self, state: str, lease: str, numbers: Array) -> Array:
        """Rows that the state had not acknowledged; numbers of those that all states have now."""
        self.rows.widen(_ack(state), np.uint32, NO_LEASE)
        self.rows[_ack(state)][numbers] = self._leases.setdefault(lease, len(self._leases) + 1)
        self.acked[state] = self.acked.get(state, 0) + len(numbers)
        counts = self.rows["acks"]
        counts[numbers] += 1
        ended: Array = numbers[counts[numbers] == len(self.states)]
        return ended

    def acknowledged(self, state: str, numbers: Array) -> Array:
        """Which of the rows the state has acknowledged, [n]."""
        if _ack(state) not in self.rows:
            return np.zeros(len(numbers), dtype=bool)
        acked: Array = self.rows[_ack(state)][numbers] != NO_LEASE
        return acked

    def acknowledged_by(self, state: str, lease: str, numbers: Array) -> Array:
        """Which of the rows it has acknowledged under that lease, [n]."""
        if _ack(state) not in self.rows or lease not in self._leases:
            return np.zeros(len(numbers), dtype=bool)
        by_it: Array = self.rows[_ack(state)][numbers] == self._leases[lease]
        return by_it

    def remove(self, numbers: Array) -> tuple[int, list[Run]]:
        """Live rows are gone: what was charged for them and for groups that went with them, and where their
        bytes lie."""
        runs = [run for source in self._sources for run in self.runs(source, numbers)]
        charged = int(self.rows["charge"][numbers].sum())
        ended = self._take_out(numbers)
        charged += int(self.groups["charge"][ended].sum())
        return charged, [*runs, *self.group_runs(ended)]

    def forget(self, runs: Iterable[Run]) -> None:
        """Slabs of these rows that have no more are not kept here any longer."""
        for slab in {run.slab for run in runs if not run.slab.live}:
            del self._slabs[self._slab_numbers.pop(slab)]

    def groups_of(self, numbers: Array) -> Array:
        """Places of the rows' groups, in order of their first appearance."""
        places = self.rows["group"][numbers]
        return np.array([*dict.fromkeys(places.tolist())], dtype=np.int64)

    def runs(self, source: str, numbers: Array) -> list[Run]:
        """Where the rows' columns of that source lie, those without left out."""
        slabs, places = _names_of(source)
        return self._runs(self.rows[slabs][numbers], self.rows[places][numbers])

    def group_runs(self, places: Array) -> list[Run]:
        """Where the groups' columns lie."""
        return self._runs(self.groups["slab"][places], self.groups["place"][places])

    def find(self, columns: Iterable[str], numbers: Array) -> dict[str, list[Run]]:
        """Where columns lie, those of groups one value a group. Raises DockRefused where a row lacks one."""
        whole = {source: self.runs(source, numbers) for source in self._sources}
        whole = {
            source: runs
            for source, runs in whole.items()
            if sum([run.last - run.first for run in runs]) == len(numbers)
        }
        found: dict[str, list[Run]] = {}
        of_groups: list[Run] | None = None
        for column in columns:
            if column in self.shared:
                of_groups = of_groups or self.group_runs(self.groups_of(numbers))
                found[column] = of_groups
                continue
            for runs in whole.values():
                if all(column in run.slab.columns for run in runs):
                    found[column] = runs
                    break
            else:
                found[column] = [run for n in numbers.tolist() for run in self._find_one(column, n)]
        return found

    def lengths(self, column: str, numbers: Array) -> Array:
        """Values of each row, -1 where it lacks the column."""
        lengths = np.full(len(numbers), -1, dtype=np.int64)
        if column in self.shared:
            groups = self.rows["group"][numbers]
            runs = self.group_runs(np.unique(groups))
            known = [length for run in runs for length in run.lengths(column)]
            return np.array(known, dtype=np.int64)[np.unique(groups, return_inverse=True)[1]]
        for source in self._sources:
            has = self.rows[_names_of(source)[0]][numbers] != NO_SLAB
            runs = self.runs(source, numbers)
            found = [
                length
                for run in runs
                for length in (
                    run.lengths(column)
                    if column in run.slab.columns
                    else [-1] * (run.last - run.first)
                )
            ]
            lengths[has] = np.maximum(lengths[has], np.array(found, dtype=np.int64))
        return lengths

    def columns_of(self, numbers: Array) -> set[str]:
        """Names of columns that any of the rows has, but for those of groups."""
        return {name for slab in self._slabs_of(numbers) for name in slab.columns}

    def growth(self, numbers: Array, added: Array) -> Array:
        """Bytes to charge beyond their reserves for so many more a row, [n]."""
        rows = self.rows
        needed = ROW_BYTES + rows["num_bytes"][numbers] + added - rows["charge"][numbers]
        beyond: Array = np.maximum(needed, 0)
        return beyond

    def check_formats(self, columns: Mapping[str, Packed]) -> None:
        """Refuse a column whose type differs from that of the batch's other rows."""
        for name, column in columns.items():
            known, given = self.formats.get(name), column.form
            if known is not None and known is not given and known != given:
                raise DockRefused(
                    f"column {name} of {self.name} is {known}; this write has {given}"
                )

    def learn_formats(
        self, columns: Mapping[str, Packed], group_columns: Mapping[str, Packed]
    ) -> None:
        """Remember the columns' types and which of them are the groups'."""
        for name, column in [*columns.items(), *group_columns.items()]:
            self.formats.setdefault(name, column.form)
        if not self.shared.issuperset(group_columns):
            self.shared |= set(group_columns)

    def held(self) -> Iterator[tuple[str, Array, Run]]:
        """Columns of live rows and groups: the source, numbers of the rows or places of the groups, where
        they lie."""
        live = self.live_rows()
        groups = np.flatnonzero(self.groups["left"])
        groups = groups[self.groups["slab"][groups] != NO_SLAB]
        sources = [(GROUPS, groups, self.group_runs(groups))]
        for source in self._sources:
            own = live[self.rows[_names_of(source)[0]][live] != NO_SLAB]
            sources.append((source, own, self.runs(source, own)))
        for source, own, runs in sources:
            first = 0
            for run in runs:
                last = first + run.last - run.first
                yield source, own[first:last], run
                first = last

    def leases(self) -> list[str]:
        """That have acknowledged rows, in an order."""
        return list(self._leases)

    def acks(self) -> dict[str, Array]:
        """By state the lease that acknowledged each row: its place among `leases` and one, 0 for none."""
        return {state: self.rows[_ack(state)] for state in self.acked}

    def know_leases(self, leases: Sequence[str]) -> None:
        """Of a record that is copied."""
        self._leases = {lease: place for place, lease in enumerate(leases, 1)}

    def restore(self, numbers: Array, *, gone: Array, acks: Mapping[str, Array]) -> None:
        """Rows that were just added are as they were in a record that is copied."""
        for state, own in acks.items():
            self.rows.widen(_ack(state), np.uint32, NO_LEASE)
            self.rows[_ack(state)][numbers] = own
            self.rows["acks"][numbers] += own != NO_LEASE
            self.acked[state] = self.acked.get(state, 0) + int((own != NO_LEASE).sum())
        self._take_out(numbers[gone])

    def _take_out(self, numbers: Array) -> Array:
        """Rows are gone; places of the groups that went with them."""
        self.rows["gone"][numbers] = True
        self.live -= len(numbers)
        groups, left = self.rows["group"][numbers], self.groups["left"]
        np.subtract.at(left, groups, 1)
        return np.array([*dict.fromkeys(groups[left[groups] == 0].tolist())], dtype=np.int64)

    def _find_one(self, column: str, number: int) -> list[Run]:
        for source in self._sources:
            for run in self.runs(source, np.array([number])):
                if column in run.slab.columns:
                    return [run]
        (uid,) = self.uids(np.array([number]))
        raise DockRefused(f"row {uid} has no column {column!r} yet")

    def _slabs_of(self, numbers: Array) -> Iterator[Slab]:
        for source in self._sources:
            for number in set(self.rows[_names_of(source)[0]][numbers].tolist()) - {NO_SLAB}:
                yield self._slabs[number]

    def _runs(self, slabs: Array, places: Array) -> list[Run]:
        numbers, left = slabs.tolist(), places.tolist()
        if not numbers:
            return []
        first, number, count = left[0], numbers[0], len(left)
        together = numbers.count(number) == count and left == [*range(first, first + count)]
        if together and number != NO_SLAB:
            return [Run(self._slabs[number], first, first + count)]
        found: list[Run] = []
        for i, (number, place) in enumerate(zip(numbers, left, strict=True)):
            if i and number == numbers[i - 1] and place == left[i - 1] + 1:
                if number != NO_SLAB:
                    found[-1] = Run(found[-1].slab, found[-1].first, place + 1)
            elif number != NO_SLAB:
                found.append(Run(self._slabs[number], place, place + 1))
        return found

    def _keep(self, slab: Slab) -> int:
        """Its number here."""
        number = self._next_slab
        self._next_slab += 1
        self._slabs[number] = slab
        self._slab_numbers[slab] = number
        return number


def _names_of(source: str) -> tuple[str, str]:
    """Of the arrays that say in which slab and where in it a source's columns of a row are."""
    return f"slab of {source}", f"place of {source}"


def _ack(state: str) -> str:
    return f"lease of {state}"
