"""What a warehouse knows of a batch: arrays by a row's number there, and the slabs that its columns lie in.

Pure. Rows are numbered as they come, those of a group one behind the other. `store` tells what happens.
"""

# n rows of a call by their numbers, each once; G groups by their places

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_runtime.dock.growing import Array, Growing
from rljob_runtime.dock.names import Names, PackedNames
from rljob_runtime.dock.warehouse.placed_columns import GROUPS, PUT, PlacedColumns
from rljob_runtime.dock.warehouse.slabs import Run, Slab

ROW_BYTES = 256
"""Charged for each row beside its columns, so that rows without bytes are bounded too."""
NO_LEASE = 0


class BatchRecord:
    """A batch's part in one warehouse.

    numbers: of all rows ever put here, by uid. live: how many of them are not gone. acked: how many each
    state has acknowledged, gone ones included.
    """

    def __init__(self, name: str, *, total: int, states: Sequence[str]) -> None:
        self.name, self.total, self.states = name, total, tuple(states)
        self.dropped = False
        self.live = 0
        self.numbers: dict[str, int] = {}
        self.acked: dict[str, int] = {}
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
        )
        self.columns = PlacedColumns(name, self.rows, self.groups)
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
        self.columns.place(GROUPS, numbers, slab)
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
        self.columns.place(PUT, numbers, slab)
        return numbers

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
        runs = self.columns.all_runs(numbers)
        charged = int(self.rows["charge"][numbers].sum())
        ended = self._take_out(numbers)
        charged += int(self.groups["charge"][ended].sum())
        return charged, [*runs, *self.columns.group_runs(ended)]

    def growth(self, numbers: Array, added: Array) -> Array:
        """Bytes to charge beyond their reserves for so many more a row, [n]."""
        rows = self.rows
        needed = ROW_BYTES + rows["num_bytes"][numbers] + added - rows["charge"][numbers]
        beyond: Array = np.maximum(needed, 0)
        return beyond

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


def _ack(state: str) -> str:
    return f"lease of {state}"
