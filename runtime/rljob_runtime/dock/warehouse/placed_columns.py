"""Location of the columns of a batch's rows and groups: the slab, and the row in it.

Pure. Each source of columns (the put of rows, a state that wrote) has one slab per row; a group also has one.
`batch_record` owns the arrays; `store` reports what arrived.
"""

# n rows of a call by their numbers, each once

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from rljob_runtime.dock.columns import Format, PackedColumn
from rljob_runtime.dock.growing import Array, GrowingTable
from rljob_runtime.dock.warehouse.slabs import Slab, SlabRun
from rljob_runtime.errors import DockRefused

PUT, GROUPS = "(put)", "(groups)"
"""Sources of the columns that rows and groups were put with; other sources are the states that wrote."""
NO_SLAB = -1


class MissingColumn(Exception):
    """A row lacks a column. number: of the row."""

    def __init__(self, number: int, column: str) -> None:
        super().__init__(f"row number {number} has no column {column!r}")
        self.number, self.column = number, column


class PlacedColumns:
    """The columns of one batch, by arrays of its rows and its groups.

    batch: its name. shared: columns of groups.
    """

    def __init__(self, batch: str, rows: GrowingTable, groups: GrowingTable) -> None:
        self.formats: dict[str, Format] = {}
        self.shared: frozenset[str] = frozenset()
        self._batch, self._rows, self._groups = batch, rows, groups
        self._slabs: dict[int, Slab] = {}
        self._numbers: dict[Slab, int] = {}
        self._next_number = 0
        self._sources: list[str] = []
        groups.widen("slab", np.int32, NO_SLAB)
        groups.widen("place", np.uint32, 0)

    def check_formats(self, columns: Mapping[str, PackedColumn]) -> None:
        """Raise DockRefused for a column whose type differs from that of the batch's other rows."""
        for name, column in columns.items():
            known, form = self.formats.get(name), column.form
            if known is not None and known is not form and known != form:
                raise DockRefused(
                    f"column {name} of {self._batch} is {known}; this write has {form}"
                )

    def add_formats(
        self, columns: Mapping[str, PackedColumn], group_columns: Mapping[str, PackedColumn]
    ) -> None:
        """Remember the columns' types, and which of them belong to groups."""
        for name, column in [*columns.items(), *group_columns.items()]:
            self.formats.setdefault(name, column.form)
        if not self.shared.issuperset(group_columns):
            self.shared |= set(group_columns)

    def assign_slab(self, source: str, numbers: Array, slab: Slab | None) -> None:
        """Record that the columns of rows (or groups) from a source are in a slab, in this order.

        slab: None where there are no columns.
        """
        if slab is None:
            return
        number = self._register(slab)
        if source == GROUPS:
            slabs, slots = self._groups["slab"], self._groups["place"]
        else:
            array_names = _array_names(source)
            if source not in self._sources:
                self._sources.append(source)
                self._rows.widen(array_names[0], np.int32, NO_SLAB)
                self._rows.widen(array_names[1], np.uint32, 0)
            slabs, slots = self._rows[array_names[0]], self._rows[array_names[1]]
        slabs[numbers] = number
        slots[numbers] = np.arange(len(numbers))

    def forget(self, runs: Iterable[SlabRun]) -> None:
        """Drop the slabs of these rows that have no live rows left."""
        for slab in {run.slab for run in runs if not run.slab.live}:
            del self._slabs[self._numbers.pop(slab)]

    def all_runs(self, numbers: Array) -> list[SlabRun]:
        """Locate all columns of the rows."""
        return [run for source in self._sources for run in self.runs(source, numbers)]

    def runs(self, source: str, numbers: Array) -> list[SlabRun]:
        """Locate the rows' columns from a source; rows without them are left out."""
        slabs, slots = _array_names(source)
        return self._runs(self._rows[slabs][numbers], self._rows[slots][numbers])

    def group_runs(self, groups: Array) -> list[SlabRun]:
        """Locate the groups' columns."""
        return self._runs(self._groups["slab"][groups], self._groups["place"][groups])

    def groups_of(self, numbers: Array) -> Array:
        """Return the indices of the rows' groups, in order of their first appearance."""
        groups = self._rows["group"][numbers]
        return np.array([*dict.fromkeys(groups.tolist())], dtype=np.int64)

    def find(self, columns: Iterable[str], numbers: Array) -> dict[str, list[SlabRun]]:
        """Locate columns; those of groups have one value a group. Raises MissingColumn where a row lacks
        one."""
        complete = {source: self.runs(source, numbers) for source in self._sources}
        complete = {
            source: runs
            for source, runs in complete.items()
            if sum([run.last - run.first for run in runs]) == len(numbers)
        }
        located: dict[str, list[SlabRun]] = {}
        of_groups: list[SlabRun] | None = None
        for column in columns:
            if column in self.shared:
                of_groups = of_groups or self.group_runs(self.groups_of(numbers))
                located[column] = of_groups
                continue
            for runs in complete.values():
                if all(column in run.slab.columns for run in runs):
                    located[column] = runs
                    break
            else:
                located[column] = [
                    run for n in numbers.tolist() for run in self._find_row(column, n)
                ]
        return located

    def lengths(self, column: str, numbers: Array) -> Array:
        """Return the number of values of each row, -1 where it lacks the column."""
        lengths = np.full(len(numbers), -1, dtype=np.int64)
        if column in self.shared:
            groups = self._rows["group"][numbers]
            runs = self.group_runs(np.unique(groups))
            group_lengths = [length for run in runs for length in run.lengths(column)]
            return np.array(group_lengths, dtype=np.int64)[
                np.unique(groups, return_inverse=True)[1]
            ]
        for source in self._sources:
            has_source = self._rows[_array_names(source)[0]][numbers] != NO_SLAB
            runs = self.runs(source, numbers)
            source_lengths = [
                length
                for run in runs
                for length in (
                    run.lengths(column)
                    if column in run.slab.columns
                    else [-1] * (run.last - run.first)
                )
            ]
            lengths[has_source] = np.maximum(
                lengths[has_source], np.array(source_lengths, dtype=np.int64)
            )
        return lengths

    def column_names(self, numbers: Array) -> set[str]:
        """Return the names of columns that any of the rows has, except those of groups."""
        return {name for slab in self._slabs_of(numbers) for name in slab.columns}

    def live_runs(self) -> Iterator[tuple[str, Array, SlabRun]]:
        """Yield the columns of live rows and groups: source, numbers of the rows or groups, location."""
        live = np.flatnonzero(~self._rows["gone"])
        groups = np.flatnonzero(self._groups["left"])
        groups = groups[self._groups["slab"][groups] != NO_SLAB]
        sources = [(GROUPS, groups, self.group_runs(groups))]
        for source in self._sources:
            members = live[self._rows[_array_names(source)[0]][live] != NO_SLAB]
            sources.append((source, members, self.runs(source, members)))
        for source, members, runs in sources:
            first = 0
            for run in runs:
                last = first + run.last - run.first
                yield source, members[first:last], run
                first = last

    def _find_row(self, column: str, number: int) -> list[SlabRun]:
        for source in self._sources:
            for run in self.runs(source, np.array([number])):
                if column in run.slab.columns:
                    return [run]
        raise MissingColumn(number, column)

    def _slabs_of(self, numbers: Array) -> Iterator[Slab]:
        for source in self._sources:
            for number in set(self._rows[_array_names(source)[0]][numbers].tolist()) - {NO_SLAB}:
                yield self._slabs[number]

    def _runs(self, slabs: Array, places: Array) -> list[SlabRun]:
        numbers, slots = slabs.tolist(), places.tolist()
        if not numbers:
            return []
        first, number, count = slots[0], numbers[0], len(slots)
        contiguous = numbers.count(number) == count and slots == [*range(first, first + count)]
        if contiguous and number != NO_SLAB:
            return [SlabRun(self._slabs[number], first, first + count)]
        runs: list[SlabRun] = []
        for i, (number, slot) in enumerate(zip(numbers, slots, strict=True)):
            if i and number == numbers[i - 1] and slot == slots[i - 1] + 1:
                if number != NO_SLAB:
                    runs[-1] = SlabRun(runs[-1].slab, runs[-1].first, slot + 1)
            elif number != NO_SLAB:
                runs.append(SlabRun(self._slabs[number], slot, slot + 1))
        return runs

    def _register(self, slab: Slab) -> int:
        """Store the slab; return its number here."""
        number = self._next_number
        self._next_number += 1
        self._slabs[number] = slab
        self._numbers[slab] = number
        return number


def _array_names(source: str) -> tuple[str, str]:
    """Return the names of the arrays with the slab and the row in it, for the columns of a source."""
    return f"slab of {source}", f"place of {source}"
