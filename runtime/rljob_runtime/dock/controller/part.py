"""The rows of one batch in one warehouse, as a controller stores them: arrays indexed by the row's number.

A warehouse numbers a batch's rows in the order of arrival; the rows of a group are contiguous. Pure; used by
`batch_ledger`.
"""

# n rows of a call by their numbers, each once; G groups by their index in the shard

from collections.abc import Iterable

import msgspec
import numpy as np

from rljob_runtime.dock.growing import Array, GrowingTable
from rljob_runtime.dock.names import NameTable, select_names
from rljob_runtime.dock.wire.messages import RowsNotice, pack_numbers, unpack_numbers

LACKING, READY, LEASED, GONE = range(4)
"""Status of a row: it lacks a needed column, may be claimed, is leased, or is gone (or was never
announced)."""
UNKNOWN = -1
"""Length recorded for a column that the row does not have."""
NOT_QUEUED = 0
"""Stamp of a row or group that is in no queue (see `lines`)."""


class BatchShard:
    """The shard of one batch in one warehouse.

    needs: columns without which a row is not ready. num_rows: rows that are not gone.
    """

    def __init__(self, warehouse: int, needs: Iterable[str]) -> None:
        self.warehouse, self.needs = warehouse, tuple(needs)
        self.num_rows = 0
        self.names, self.group_names = NameTable(), NameTable()
        lengths = {_length(name): (np.int64, UNKNOWN) for name in self.needs}
        self.rows = GrowingTable(
            status=(np.uint8, GONE),
            line=(np.uint32, NOT_QUEUED),
            attempt=(np.uint16, 0),
            lease=(np.uint32, 0),
            place=(np.uint32, 0),
            group=(np.uint32, 0),
            version=(np.int64, 0),
            **lengths,
        )
        self.groups = GrowingTable(
            first=(np.uint32, 0),
            size=(np.int32, 0),
            index=(np.int64, 0),
            left=(np.int32, 0),
            ready=(np.int32, 0),
            line=(np.uint32, NOT_QUEUED),
        )

    def add(self, notice: RowsNotice) -> Array:
        """Add new rows and return the numbers of those that are ready.

        Raises ValueError where the notice contradicts itself or the rows that are stored.
        """
        numbers, rows = unpack_numbers(notice.numbers), self.rows
        if (numbers[1:] <= numbers[:-1]).any() or (len(numbers) and numbers[0] < 0):
            raise ValueError("numbers of rows do not ascend")
        if (rows["status"][numbers[numbers < rows.length]] != GONE).any():
            raise ValueError("rows that are known are told of as new")
        self._add_groups(notice)
        first_name = len(self.names)
        if self.names.add(notice.names) != len(numbers):
            raise ValueError(f"{len(self.names) - first_name} names of {len(numbers)} rows")
        if not len(numbers):
            return numbers
        rows.grow(int(numbers[-1]) + 1)
        index = self.index_of(numbers)
        complete = np.ones(len(numbers), dtype=bool)
        for name in self.needs:
            lengths = notice.lengths.get(name)
            if lengths is None:
                complete[:] = False
                continue
            row_lengths = require_length(unpack_numbers(lengths), numbers)
            rows[_length(name)][index] = row_lengths
            complete &= row_lengths != UNKNOWN
        firsts = self.groups["first"]
        groups = np.searchsorted(firsts, numbers.astype(firsts.dtype), side="right") - 1
        rows["status"][index] = np.where(complete, READY, LACKING)
        rows["place"][index] = np.arange(first_name, len(self.names))
        rows["group"][index] = groups
        rows["version"][index] = require_length(unpack_numbers(notice.versions), numbers)
        self.num_rows += len(numbers)
        np.add.at(self.groups["left"], groups, 1)
        np.add.at(self.groups["ready"], groups, complete)
        ready: Array = numbers[complete]
        return ready

    def change(self, column: str, numbers: Array, lengths: Array, versions: Array) -> Array:
        """Record a column's lengths and the rows' versions; return the rows that became ready.

        Rows that are gone are left out.
        """
        present = self.present(numbers)
        numbers = numbers[present]
        self.rows["version"][numbers] = require_length(versions, present)[present]
        if column not in self.needs:
            return numbers[:0]
        self.rows[_length(column)][numbers] = require_length(lengths, present)[present]
        return self._update_ready(numbers)

    def lease(self, numbers: Array, lease: int) -> None:
        """Mark ready rows as leased."""
        self.rows["status"][numbers] = LEASED
        self.rows["lease"][numbers] = lease
        self._count("ready", numbers, -1)

    def give_back(self, numbers: Array) -> None:
        """Make leased rows claimable again."""
        self.rows["status"][numbers] = READY
        self.rows["lease"][numbers] = 0
        self._count("ready", numbers, 1)

    def remove(self, numbers: Array) -> None:
        """Mark rows as gone; each must be present."""
        status = self.rows["status"]
        self._count("ready", numbers[status[numbers] == READY], -1)
        self._count("left", numbers, -1)
        status[numbers] = GONE
        self.rows["lease"][numbers] = 0
        self.num_rows -= len(numbers)

    def present(self, numbers: Array) -> Array:
        """Return a mask of the rows that are not gone, [n]."""
        known = (numbers >= 0) & (numbers < self.rows.length)
        known[known] = self.rows["status"][numbers[known]] != GONE
        return known

    def all_present(self) -> Array:
        """Return the numbers of all rows that are not gone."""
        return np.flatnonzero(self.rows["status"] != GONE)

    def lengths(self, column: str) -> Array:
        """Return the column's length of every row, by number; UNKNOWN where a row lacks the column."""
        return self.rows[_length(column)]

    def group_of(self, numbers: Array) -> Array:
        """Return the index of each row's group."""
        return self.rows["group"][numbers].astype(np.int64)

    def rows_of(self, groups: Array) -> Array:
        """Return the numbers of these groups' rows that are not gone, group by group."""
        firsts, sizes = self.groups["first"][groups], self.groups["size"][groups]
        numbers = ranges(firsts, sizes)
        return numbers[self.present(numbers)]

    def ready_groups(self, groups: Array) -> Array:
        """Return a mask of the groups that have rows left, all of which may be claimed, [G]."""
        left = self.groups["left"][groups]
        complete: Array = (self.groups["ready"][groups] == left) & (left > 0)
        return complete

    def uids(self, numbers: Array) -> list[str]:
        """Return the uids of the rows."""
        return self.names.at(self.rows["place"][numbers].astype(np.int64))

    def _update_ready(self, numbers: Array) -> Array:
        complete = self.rows["status"][numbers] == LACKING
        for name in self.needs:
            complete &= self.rows[_length(name)][numbers] != UNKNOWN
        ready: Array = numbers[complete]
        self.rows["status"][ready] = READY
        self._count("ready", ready, 1)
        return ready

    def _count(self, counter: str, numbers: Array, delta: int) -> None:
        """Add `delta` to a counter of the rows' groups."""
        if len(numbers):
            np.add.at(self.groups[counter], self.group_of(numbers), delta)

    def index_of(self, numbers: Array) -> Array | slice:
        """Return an index of these rows into the arrays: a slice, which is faster, where they are
        contiguous."""
        first, last = int(numbers[0]), int(numbers[-1])
        if last - first == len(numbers) - 1 and (numbers[1:] > numbers[:-1]).all():
            return slice(first, last + 1)
        return numbers

    def _add_groups(self, notice: RowsNotice) -> None:
        firsts, known = unpack_numbers(notice.firsts), self.groups["first"]
        if (firsts[1:] <= firsts[:-1]).any() or (len(firsts) and firsts[0] < 0):
            raise ValueError("groups of rows are not told of in their order")
        names, added = notice.groups, slice(None)
        if len(known) and len(firsts) and firsts[0] <= known[-1]:
            is_new = firsts > known[-1]
            if not np.isin(firsts[~is_new], known).all():
                raise ValueError("groups of rows are not told of in their order")
            names, added = select_names(notice.groups, is_new), is_new
        self.group_names.add(names)
        self.groups.add(
            first=firsts[added],
            size=require_length(unpack_numbers(notice.sizes), firsts)[added],
            index=require_length(unpack_numbers(notice.indexes), firsts)[added],
        )


def select_rows(notice: RowsNotice, selected: Array) -> RowsNotice:
    """Return the notice with only the rows of a mask. Raises ValueError."""

    def cut(numbers: bytes) -> bytes:
        return pack_numbers(require_length(unpack_numbers(numbers), selected)[selected])

    return msgspec.structs.replace(
        notice,
        numbers=cut(notice.numbers),
        names=select_names(notice.names, selected),
        versions=cut(notice.versions),
        lengths={name: cut(lengths) for name, lengths in notice.lengths.items()},
    )


def require_length(values: Array, expected: Array) -> Array:
    """Return the values after checking that there is one for each expected item. Raises ValueError."""
    if len(values) != len(expected):
        raise ValueError(f"{len(values)} values for {len(expected)}")
    return values


def ranges(firsts: Array, sizes: Array) -> Array:
    """Return first, first + 1, … of each range, concatenated."""
    sizes = sizes.astype(np.int64)
    if len(firsts) and (sizes == 1).all():
        return firsts.astype(np.int64)
    ends = sizes.cumsum()
    offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - sizes, sizes)
    numbers: Array = np.repeat(firsts, sizes) + offsets
    return numbers


def _length(column: str) -> str:
    return f"length of {column}"
