"""Rows of one batch in one warehouse, as a controller knows them: arrays by the row's number there.

A warehouse numbers a batch's rows as they come, those of a group one behind the other in their order. Pure;
`batch_ledger` asks it.
"""

# n rows of a call by their numbers, each once; G groups by their places in the part

from collections.abc import Iterable

import msgspec
import numpy as np

from rljob_runtime.dock.growing import Array, Growing
from rljob_runtime.dock.names import Names, picked
from rljob_runtime.dock.wire.messages import RowsNotice, numbers_of, packed

LACKING, READY, LEASED, GONE = range(4)
"""A row lacks a needed column, may be claimed, is held by somebody, is no more (or was never told of)."""
UNKNOWN = -1
"""Length of a column that is not there."""
NOT_IN_LINE = 0
"""Stamp of a row or group that stands in no line (`lines`)."""


class Part:
    """needs: columns without which a row is not ready. num_rows: that are not gone."""

    def __init__(self, warehouse: int, needs: Iterable[str]) -> None:
        self.warehouse, self.needs = warehouse, tuple(needs)
        self.num_rows = 0
        self.names, self.group_names = Names(), Names()
        lengths = {_length(name): (np.int64, UNKNOWN) for name in self.needs}
        self.rows = Growing(
            status=(np.uint8, GONE),
            line=(np.uint32, NOT_IN_LINE),
            attempt=(np.uint16, 0),
            lease=(np.uint32, 0),
            place=(np.uint32, 0),
            group=(np.uint32, 0),
            version=(np.int64, 0),
            **lengths,
        )
        self.groups = Growing(
            first=(np.uint32, 0),
            size=(np.int32, 0),
            index=(np.int64, 0),
            left=(np.int32, 0),
            ready=(np.int32, 0),
            line=(np.uint32, NOT_IN_LINE),
        )

    def add(self, told: RowsNotice) -> Array:
        """Rows that were not known; numbers of those that are ready. Raises ValueError where the notice
        contradicts itself or what is known."""
        numbers, rows = numbers_of(told.numbers), self.rows
        if (numbers[1:] <= numbers[:-1]).any() or (len(numbers) and numbers[0] < 0):
            raise ValueError("numbers of rows do not ascend")
        if (rows["status"][numbers[numbers < rows.length]] != GONE).any():
            raise ValueError("rows that are known are told of as new")
        self._add_groups(told)
        first_name = len(self.names)
        if self.names.add(told.names) != len(numbers):
            raise ValueError(f"{len(self.names) - first_name} names of {len(numbers)} rows")
        if not len(numbers):
            return numbers
        rows.grow(int(numbers[-1]) + 1)
        at = self.at(numbers)
        whole = np.ones(len(numbers), dtype=bool)
        for name in self.needs:
            lengths = told.lengths.get(name)
            if lengths is None:
                whole[:] = False
                continue
            own = as_many(numbers_of(lengths), numbers)
            rows[_length(name)][at] = own
            whole &= own != UNKNOWN
        firsts = self.groups["first"]
        groups = np.searchsorted(firsts, numbers.astype(firsts.dtype), side="right") - 1
        rows["status"][at] = np.where(whole, READY, LACKING)
        rows["place"][at] = np.arange(first_name, len(self.names))
        rows["group"][at] = groups
        rows["version"][at] = as_many(numbers_of(told.versions), numbers)
        self.num_rows += len(numbers)
        np.add.at(self.groups["left"], groups, 1)
        np.add.at(self.groups["ready"], groups, whole)
        ready: Array = numbers[whole]
        return ready

    def change(self, column: str, numbers: Array, lengths: Array, versions: Array) -> Array:
        """Rows got a needed column, or another length of it; those of them that are ready by it. Rows that
        are gone are left out."""
        there = self.there(numbers)
        numbers = numbers[there]
        self.rows["version"][numbers] = as_many(versions, there)[there]
        if column not in self.needs:
            return numbers[:0]
        self.rows[_length(column)][numbers] = as_many(lengths, there)[there]
        return self._now_ready(numbers)

    def lease(self, numbers: Array, lease: int) -> None:
        """Ready rows were given to somebody."""
        self.rows["status"][numbers] = LEASED
        self.rows["lease"][numbers] = lease
        self._count("ready", numbers, -1)

    def give_back(self, numbers: Array) -> None:
        """Leased rows may be claimed again."""
        self.rows["status"][numbers] = READY
        self.rows["lease"][numbers] = 0
        self._count("ready", numbers, 1)

    def remove(self, numbers: Array) -> None:
        """Rows are no more; each is there."""
        status = self.rows["status"]
        self._count("ready", numbers[status[numbers] == READY], -1)
        self._count("left", numbers, -1)
        status[numbers] = GONE
        self.rows["lease"][numbers] = 0
        self.num_rows -= len(numbers)

    def there(self, numbers: Array) -> Array:
        """Which of these rows are not gone, [n]."""
        known = (numbers >= 0) & (numbers < self.rows.length)
        known[known] = self.rows["status"][numbers[known]] != GONE
        return known

    def all_there(self) -> Array:
        """Numbers of all rows that are not gone."""
        return np.flatnonzero(self.rows["status"] != GONE)

    def lengths(self, column: str) -> Array:
        """Of all rows, by number; UNKNOWN where a row lacks the needed column."""
        return self.rows[_length(column)]

    def group_of(self, numbers: Array) -> Array:
        """Places of the rows' groups."""
        return self.rows["group"][numbers].astype(np.int64)

    def rows_of(self, groups: Array) -> Array:
        """Numbers of the rows of these groups that are not gone, group by group."""
        firsts, sizes = self.groups["first"][groups], self.groups["size"][groups]
        numbers = ranges(firsts, sizes)
        return numbers[self.there(numbers)]

    def ready_groups(self, groups: Array) -> Array:
        """Which of these groups have rows left, all of which may be claimed, [G]."""
        left = self.groups["left"][groups]
        whole: Array = (self.groups["ready"][groups] == left) & (left > 0)
        return whole

    def uids(self, numbers: Array) -> list[str]:
        """Names of rows."""
        return self.names.at(self.rows["place"][numbers].astype(np.int64))

    def _now_ready(self, numbers: Array) -> Array:
        whole = self.rows["status"][numbers] == LACKING
        for name in self.needs:
            whole &= self.rows[_length(name)][numbers] != UNKNOWN
        ready: Array = numbers[whole]
        self.rows["status"][ready] = READY
        self._count("ready", ready, 1)
        return ready

    def _count(self, what: str, numbers: Array, by: int) -> None:
        """Add to the counts of the rows' groups."""
        if len(numbers):
            np.add.at(self.groups[what], self.group_of(numbers), by)

    def at(self, numbers: Array) -> Array | slice:
        """Where these rows are in the arrays, which is quicker told of rows that follow each other."""
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == len(numbers) - 1 and (numbers[1:] > numbers[:-1]).all():
            return slice(first, last + 1)
        return numbers

    def _add_groups(self, told: RowsNotice) -> None:
        firsts, known = numbers_of(told.firsts), self.groups["first"]
        if (firsts[1:] <= firsts[:-1]).any() or (len(firsts) and firsts[0] < 0):
            raise ValueError("groups of rows are not told of in their order")
        names, new = told.groups, slice(None)
        if len(known) and len(firsts) and firsts[0] <= known[-1]:
            which = firsts > known[-1]
            if not np.isin(firsts[~which], known).all():
                raise ValueError("groups of rows are not told of in their order")
            names, new = picked(told.groups, which), which
        self.group_names.add(names)
        self.groups.add(
            first=firsts[new],
            size=as_many(numbers_of(told.sizes), firsts)[new],
            index=as_many(numbers_of(told.indexes), firsts)[new],
        )


def only_rows(told: RowsNotice, which: Array) -> RowsNotice:
    """Some of the rows, by a mask. Raises ValueError."""

    def cut(numbers: bytes) -> bytes:
        return packed(as_many(numbers_of(numbers), which)[which])

    return msgspec.structs.replace(
        told,
        numbers=cut(told.numbers),
        names=picked(told.names, which),
        versions=cut(told.versions),
        lengths={name: cut(lengths) for name, lengths in told.lengths.items()},
    )


def as_many(values: Array, others: Array) -> Array:
    """The values, one for each of the others. Raises ValueError."""
    if len(values) != len(others):
        raise ValueError(f"{len(values)} values for {len(others)}")
    return values


def ranges(firsts: Array, sizes: Array) -> Array:
    """first, first + 1 … of each, one behind the other."""
    sizes = sizes.astype(np.int64)
    if len(firsts) and (sizes == 1).all():
        return firsts.astype(np.int64)
    ends = sizes.cumsum()
    inner = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    numbers: Array = np.repeat(firsts, sizes) + inner
    return numbers


def _length(column: str) -> str:
    return f"length of {column}"
