"""Where the columns of a batch's rows and groups lie: in which slab, and where in it.

Pure. Of each source of columns (the put of rows, a state that wrote) a row has one slab; so has a group.
`batch_record` keeps the arrays, `store` says what came.
"""

# n rows of a call by their numbers, each once

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rljob_runtime.dock.columns import Format, Packed
from rljob_runtime.dock.growing import Array, Growing
from rljob_runtime.dock.warehouse.slabs import Run, Slab
from rljob_runtime.errors import DockRefused

PUT, GROUPS = "(put)", "(groups)"
"""Sources of the columns that rows came with, and of those of groups; others are states, which wrote."""
NO_SLAB = -1


class Lacking(Exception):
    """A row has not a column. number: of the row."""

    def __init__(self, number: int, column: str) -> None:
        super().__init__(f"row number {number} has no column {column!r}")
        self.number, self.column = number, column


class PlacedColumns:
    """Columns of the batch of that name, by arrays of its rows and its groups. shared: columns of groups."""

    def __init__(self, batch: str, rows: Growing, groups: Growing) -> None:
        self.formats: dict[str, Format] = {}
        self.shared: frozenset[str] = frozenset()
        self._batch, self._rows, self._groups = batch, rows, groups
        self._slabs: dict[int, Slab] = {}
        self._numbers: dict[Slab, int] = {}
        self._next = 0
        self._sources: list[str] = []
        groups.widen("slab", np.int32, NO_SLAB)
        groups.widen("place", np.uint32, 0)

    def check_formats(self, columns: Mapping[str, Packed]) -> None:
        """Refuse a column whose type differs from that of the batch's other rows."""
        for name, column in columns.items():
            known, given = self.formats.get(name), column.form
            if known is not None and known is not given and known != given:
                raise DockRefused(
                    f"column {name} of {self._batch} is {known}; this write has {given}"
                )

    def learn_formats(
        self, columns: Mapping[str, Packed], group_columns: Mapping[str, Packed]
    ) -> None:
        """Remember the columns' types and which of them are the groups'."""
        for name, column in [*columns.items(), *group_columns.items()]:
            self.formats.setdefault(name, column.form)
        if not self.shared.issuperset(group_columns):
            self.shared |= set(group_columns)

    def place(self, source: str, numbers: Array, slab: Slab | None) -> None:
        """The rows' columns of that source, or the groups', lie in a slab, in this order. None: there are
        none."""
        if slab is None:
            return
        number = self._keep(slab)
        if source == GROUPS:
            slabs, places = self._groups["slab"], self._groups["place"]
        else:
            names = _names_of(source)
            if source not in self._sources:
                self._sources.append(source)
                self._rows.widen(names[0], np.int32, NO_SLAB)
                self._rows.widen(names[1], np.uint32, 0)
            slabs, places = self._rows[names[0]], self._rows[names[1]]
        slabs[numbers] = number
        places[numbers] = np.arange(len(numbers))

    def forget(self, runs: Iterable[Run]) -> None:
        """Slabs of these rows that have no more are not kept here any longer."""
        for slab in {run.slab for run in runs if not run.slab.live}:
            del self._slabs[self._numbers.pop(slab)]

    def all_runs(self, numbers: Array) -> list[Run]:
        """Where all of the rows' columns lie."""
        return [run for source in self._sources for run in self.runs(source, numbers)]

    def runs(self, source: str, numbers: Array) -> list[Run]:
        """Where the rows' columns of that source lie, those without left out."""
        slabs, places = _names_of(source)
        return self._runs(self._rows[slabs][numbers], self._rows[places][numbers])

    def group_runs(self, places: Array) -> list[Run]:
        """Where the groups' columns lie."""
        return self._runs(self._groups["slab"][places], self._groups["place"][places])

    def groups_of(self, numbers: Array) -> Array:
        """Places of the rows' groups, in order of their first appearance."""
        places = self._rows["group"][numbers]
        return np.array([*dict.fromkeys(places.tolist())], dtype=np.int64)

    def find(self, columns: Iterable[str], numbers: Array) -> dict[str, list[Run]]:
        """Where columns lie, those of groups one value a group. Raises Lacking where a row
        has not one."""
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
            groups = self._rows["group"][numbers]
            runs = self.group_runs(np.unique(groups))
            known = [length for run in runs for length in run.lengths(column)]
            return np.array(known, dtype=np.int64)[np.unique(groups, return_inverse=True)[1]]
        for source in self._sources:
            has = self._rows[_names_of(source)[0]][numbers] != NO_SLAB
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

    def names_of(self, numbers: Array) -> set[str]:
        """Names of columns that any of the rows has, but for those of groups."""
        return {name for slab in self._slabs_of(numbers) for name in slab.columns}

    def held(self) -> Iterator[tuple[str, Array, Run]]:
        """Columns of live rows and groups: the source, numbers of the rows or places of the groups, where
        they lie."""
        live = np.flatnonzero(~self._rows["gone"])
        groups = np.flatnonzero(self._groups["left"])
        groups = groups[self._groups["slab"][groups] != NO_SLAB]
        sources = [(GROUPS, groups, self.group_runs(groups))]
        for source in self._sources:
            own = live[self._rows[_names_of(source)[0]][live] != NO_SLAB]
            sources.append((source, own, self.runs(source, own)))
        for source, own, runs in sources:
            first = 0
            for run in runs:
                last = first + run.last - run.first
                yield source, own[first:last], run
                first = last

    def _find_one(self, column: str, number: int) -> list[Run]:
        for source in self._sources:
            for run in self.runs(source, np.array([number])):
                if column in run.slab.columns:
                    return [run]
        raise Lacking(number, column)

    def _slabs_of(self, numbers: Array) -> Iterator[Slab]:
        for source in self._sources:
            for number in set(self._rows[_names_of(source)[0]][numbers].tolist()) - {NO_SLAB}:
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
        number = self._next
        self._next += 1
        self._slabs[number] = slab
        self._numbers[slab] = number
        return number


def _names_of(source: str) -> tuple[str, str]:
    """Of the arrays that say in which slab and where in it a source's columns of a row are."""
    return f"slab of {source}", f"place of {source}"
