"""A warehouse's record of a batch: arrays indexed by row number, and the slabs that contain its columns.

Pure. Rows are numbered in the order of arrival; the rows of a group are contiguous. `store` reports the
changes.
"""

# n rows of a call by their numbers, each once; G groups by their index

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_runtime.dock.growing import Array, GrowingTable
from rljob_runtime.dock.names import NameTable, PackedNames
from rljob_runtime.dock.warehouse.placed_columns import GROUPS, PUT, PlacedColumns
from rljob_runtime.dock.warehouse.slabs import Slab, SlabRun

ROW_BYTES = 256
"""Bytes charged for each row besides its columns, so that the number of rows without bytes is bounded too."""
NO_LEASE = 0


class BatchRecord:
    """The shard of a batch in one warehouse.

    numbers: of all rows ever put here, by uid. live: how many of them are not gone. acked: how many each
    state has acknowledged, gone ones included.
    """

    def __init__(self, name: str, *, total: int, states: Sequence[str]) -> None:
        self.name, self.total, self.states = name, total, tuple(states)
        self.dropped = False
        self.live = 0
        self.numbers: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.group_names = NameTable()
        self.rows = GrowingTable(
            gone=(np.bool, 0),
            group=(np.uint32, 0),
            acks=(np.uint16, 0),
            version=(np.int64, 0),
            charge=(np.int64, 0),
            num_bytes=(np.int64, 0),
        )
        self.groups = GrowingTable(
            first=(np.uint32, 0),
            size=(np.uint32, 0),
            left=(np.uint32, 0),
            index=(np.int64, 0),
            charge=(np.int64, 0),
        )
        self.columns = PlacedColumns(name, self.rows, self.groups)
        self._leases: dict[str, int] = {}

    @property
    def known(self) -> int:
        """The number of rows ever put here."""
        return len(self.numbers)

    def live_rows(self) -> Array:
        """Return the numbers of rows that are not gone."""
        return np.flatnonzero(~self.rows["gone"])

    def uids(self, numbers: Array) -> list[str]:
        """Return the uids of the rows."""
        names = list(self.numbers)
        return [names[number] for number in numbers.tolist()]

    def group_name(self, number: int) -> str:
        """Return the name of a row's group."""
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
        """Add new groups, whose rows are added next; return their indices."""
        self.group_names.add(names)
        ends = self.groups["first"][-1:] + self.groups["size"][-1:]
        new_groups = self.groups.add(
            first=int(ends.sum()) + sizes.cumsum() - sizes,
            size=sizes,
            left=sizes,
            index=indexes,
            charge=charges,
        )
        numbers = np.arange(new_groups.start, new_groups.stop)
        self.columns.assign_slab(GROUPS, numbers, slab)
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
        """Append new rows; return their numbers."""
        first = self.rows.length
        self.numbers.update(zip(uids, range(first, first + len(uids)), strict=True))
        self.rows.add(group=groups, version=versions, charge=charges, num_bytes=num_bytes)
        self.live += len(uids)
        numbers = np.arange(first, self.rows.length)
        self.columns.assign_slab(PUT, numbers, slab)
        return numbers

    def acknowledge(self, state: str, lease: str, numbers: Array) -> Array:
        """Acknowledge rows that the state had not acknowledged.

        Returns the numbers of those that all states have acknowledged now.
        """
        self.rows.widen(_ack(state), np.uint32, NO_LEASE)
        self.rows[_ack(state)][numbers] = self._leases.setdefault(lease, len(self._leases) + 1)
        self.acked[state] = self.acked.get(state, 0) + len(numbers)
        counts = self.rows["acks"]
        counts[numbers] += 1
        finished: Array = numbers[counts[numbers] == len(self.states)]
        return finished

    def is_acknowledged(self, state: str, numbers: Array) -> Array:
        """Return a mask of the rows that the state has acknowledged, [n]."""
        if _ack(state) not in self.rows:
            return np.zeros(len(numbers), dtype=bool)
        acked: Array = self.rows[_ack(state)][numbers] != NO_LEASE
        return acked

    def is_acknowledged_by(self, state: str, lease: str, numbers: Array) -> Array:
        """Return a mask of the rows that the state has acknowledged under that lease, [n]."""
        if _ack(state) not in self.rows or lease not in self._leases:
            return np.zeros(len(numbers), dtype=bool)
        acked: Array = self.rows[_ack(state)][numbers] == self._leases[lease]
        return acked

    def remove(self, numbers: Array) -> tuple[int, list[SlabRun]]:
        """Mark live rows as gone.

        Returns the bytes charged for them and for groups that became empty, and the location of their
        columns.
        """
        runs = self.columns.all_runs(numbers)
        charged = int(self.rows["charge"][numbers].sum())
        empty_groups = self._take_out(numbers)
        charged += int(self.groups["charge"][empty_groups].sum())
        return charged, [*runs, *self.columns.group_runs(empty_groups)]

    def growth(self, numbers: Array, added: Array) -> Array:
        """Return the bytes to charge beyond the reserves when each row grows by `added`, [n]."""
        rows = self.rows
        needed = ROW_BYTES + rows["num_bytes"][numbers] + added - rows["charge"][numbers]
        beyond: Array = np.maximum(needed, 0)
        return beyond

    def leases(self) -> list[str]:
        """Return the leases that have acknowledged rows, in a fixed order."""
        return list(self._leases)

    def acks(self) -> dict[str, Array]:
        """Return by state the lease that acknowledged each row: its index in `leases` plus one, 0 for
        none."""
        return {state: self.rows[_ack(state)] for state in self.acked}

    def set_leases(self, leases: Sequence[str]) -> None:
        """Set the leases of a record that is a copy."""
        self._leases = {lease: number for number, lease in enumerate(leases, 1)}

    def restore(self, numbers: Array, *, gone: Array, acks: Mapping[str, Array]) -> None:
        """Set the state of rows that were just added to that of the record that is copied."""
        for state, leases in acks.items():
            self.rows.widen(_ack(state), np.uint32, NO_LEASE)
            self.rows[_ack(state)][numbers] = leases
            self.rows["acks"][numbers] += leases != NO_LEASE
            self.acked[state] = self.acked.get(state, 0) + int((leases != NO_LEASE).sum())
        self._take_out(numbers[gone])

    def _take_out(self, numbers: Array) -> Array:
        """Mark rows as gone; return the indices of groups that became empty."""
        self.rows["gone"][numbers] = True
        self.live -= len(numbers)
        groups, left = self.rows["group"][numbers], self.groups["left"]
        np.subtract.at(left, groups, 1)
        return np.array([*dict.fromkeys(groups[left[groups] == 0].tolist())], dtype=np.int64)


def _ack(state: str) -> str:
    return f"lease of {state}"
