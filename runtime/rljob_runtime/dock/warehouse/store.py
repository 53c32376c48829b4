"""What one warehouse holds: rows, their columns, their acknowledgements, and the room left.

No I/O, no clock: columns go into the memory it is given. The warehouse server applies messages to it
and broadcasts its notices.
"""

# n rows of one message in G groups

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import ROW_BYTES, BatchRecord
from rljob_runtime.dock.warehouse.located import Located, located
from rljob_runtime.dock.warehouse.named_rows import Named, live_rows, named_rows
from rljob_runtime.dock.warehouse.notices import (
    Notice,
    ack_notice,
    column_notice,
    rows_notice,
)
from rljob_runtime.dock.warehouse.put_rules import Put, batch_for_put, new_of, read_put
from rljob_runtime.dock.warehouse.slabs import Grant, NoRoom, Slab, SlabMemory, slab_bytes
from rljob_runtime.dock.warehouse.write_rules import check_columns, sort_out
from rljob_runtime.dock.wire.memory import Memory
from rljob_runtime.dock.wire.messages import BatchNotice, NewRows, Written, packed
from rljob_runtime.errors import DockFull, DockRefused

REMEMBERED_ROWS, REMEMBERED_BATCHES = 50_000, 1_000
"""Freed rows whose uids are kept, so that a late write or a repeated put is known as such; and batches
without other rows, each of which takes some kilobytes however few it had."""


@dataclass(slots=True, kw_only=True)
class WarehouseStore:
    """Rows of all batches in one warehouse.

    capacity_bytes bounds what is charged: columns, reserves of rows and ROW_BYTES a row.
    derived_share of it is kept from new rows, so that columns of existing rows find room first.
    memory: where columns lie, of capacity_bytes and grantable_bytes at least; default: this process's own.
    grantable_bytes: of it, for slabs that writers fill.
    """

    graph: StateGraph
    capacity_bytes: int
    derived_share: float = 0.25
    memory: Memory | None = None
    grantable_bytes: int = 0
    slabs: SlabMemory = field(init=False)
    charged_bytes: int = 0
    peak_bytes: int = 0
    batches: dict[str, BatchRecord] = field(default_factory=dict)
    live: dict[str, BatchRecord] = field(default_factory=dict)
    """Those of the batches that have rows."""
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = self.memory or Memory(self.capacity_bytes)
        self.slabs = SlabMemory(memory, grantable_bytes=self.grantable_bytes)

    @property
    def num_rows(self) -> int:
        """Rows that are not gone."""
        return sum([record.live for record in self.live.values()])

    def put_rows(
        self,
        batch: str,
        *,
        total: int,
        states: Sequence[str],
        rows: NewRows,
        columns: Mapping[str, Packed],
        group_columns: Mapping[str, Packed],
        grant: Grant | None = None,
    ) -> int:
        """Store new rows; those that are or were here are skipped. Returns how many were new.

        columns: n rows each; group_columns: one row a group; grant: that they lie in, and stay in where all
        rows are new. Raises MalformedFrame, DockRefused, DockFull (never fits), NoRoom (not now); nothing is
        stored then.
        """
        told, names = read_put(rows, columns, group_columns), [*columns, *group_columns]
        record = batch_for_put(
            self.batches.get(batch), self.graph, batch, total=total, states=states, columns=names
        )
        put = new_of(record, self.live, told)
        if not put.uids:
            return 0
        sizes, shared = (
            _row_bytes(put.columns, len(put.uids)),
            _row_bytes(put.shared, len(put.sizes)),
        )
        # Reserves are whatever a client says: only what may be admitted is added up in 64 bits.
        needed = sum(put.reserves.tolist()) + ROW_BYTES * len(put.uids)
        needed += int(sizes.sum()) + int(shared.sum())
        self._admit_new(batch, needed)
        self.slabs.require(slab_bytes(put.columns) + slab_bytes(put.shared))
        if batch not in self.batches:
            self.batches[batch] = record
            self.notices.append(Notice(BatchNotice(batch, total, record.states)))
        record.columns.learn_formats(put.columns, put.shared)
        charges = put.reserves + (ROW_BYTES + sizes)
        lies = grant if put.columns is columns else None
        self._add(record, put, lies, charges=charges, num_bytes=sizes, group_charges=shared)
        self.live[batch] = record
        self.charge(needed)
        return len(put.uids)

    def write(
        self,
        *,
        state: str,
        lease: str,
        uids: Sequence[str],
        columns: Mapping[str, Packed],
        version: int | None,
        grant: Grant | None = None,
    ) -> Written:
        """Store a state's columns and acknowledge its rows; the first write of a row wins.

        Columns that the graph does not know may come beside the state's own; whoever knows of them
        may read them. A row takes all columns from one write. grant: as for `put_rows`. Raises DockRefused,
        DockLost, NoRoom; nothing is stored then.
        """
        if len(set(uids)) != len(uids):
            raise DockRefused(f"a write of state {state} names a row twice")
        named = named_rows(self.live, self.batches, uids)
        fresh, duplicates, foreign = sort_out(named, uids, state=state, lease=lease)
        for record in [record for record, _, _ in fresh]:
            self.graph.check_write(state, list(columns), record.states)
        if columns:
            self._add_columns(state, fresh, columns, uids, grant)
        for record, _, numbers in fresh:
            if version is not None:
                record.rows["version"][numbers] = version
            self.notices += [
                Notice(column_notice(record, name, numbers), rows=len(numbers)) for name in columns
            ]
        for record, _, numbers in fresh:
            ended = record.acknowledge(state, lease, numbers)
            self.notices.append(Notice(ack_notice(record, numbers), (state,), len(numbers)))
            self._free(record, ended)
        return Written(
            stored=sum([len(numbers) for _, _, numbers in fresh]),
            duplicates=tuple([uids[place] for place in duplicates]),
            foreign=tuple([uids[place] for place in foreign]),
        )

    def read(self, uids: Sequence[str], columns: Sequence[str]) -> list[Located]:
        """Where the columns of the rows are. Raises DockLost, DockRefused."""
        named = live_rows(self.live, self.batches, uids)
        return located(named, columns)

    def drop_batch(self, batch: str) -> int:
        """Free a batch's rows for good; its name cannot be used again. Returns rows freed."""
        record = self.batches.setdefault(batch, BatchRecord(batch, total=0, states=()))
        live = record.live_rows()
        record.dropped = True
        self._free(record, live)
        self.notices.append(Notice(batch))
        return len(live)

    def take_notices(self) -> list[Notice]:
        """What happened since the last call, in order."""
        taken, self.notices = self.notices, []
        return taken

    def stuck_state(self) -> tuple[str, int] | None:
        """The state that most rows are ready for and wait on, with their number."""
        counts = dict.fromkeys(self.graph.names, 0)
        for record in self.live.values():
            live = record.live_rows()
            has = {name: record.columns.lengths(name, live) >= 0 for name in record.columns.formats}
            for name in record.states:
                ready = ~record.acknowledged(name, live)
                for column in self.graph.state(name).needs:
                    ready &= has.get(column, False)
                counts[name] += int(ready.sum())
        state = max(counts, key=lambda name: counts[name], default=None)
        return (state, counts[state]) if state is not None and counts[state] else None

    def unacknowledged(self) -> dict[str, int]:
        """Live rows that each state has not acknowledged."""
        counts = dict.fromkeys(self.graph.names, 0)
        for record in self.live.values():
            for name in record.states:
                counts[name] += record.known - record.acked.get(name, 0)
        return counts

    def charge(self, num_bytes: int) -> None:
        """So many more bytes are held."""
        self.charged_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.charged_bytes)

    def _add(
        self,
        record: BatchRecord,
        put: Put,
        grant: Grant | None,
        *,
        charges: Array,
        num_bytes: Array,
        group_charges: Array,
    ) -> None:
        places = record.add_groups(
            put.groups,
            sizes=put.sizes,
            indexes=put.indexes,
            charges=group_charges,
            slab=self._lay(put.shared, grant),
        )
        numbers = record.add_rows(
            put.uids,
            groups=np.repeat(places, put.sizes),
            versions=put.versions,
            charges=charges,
            num_bytes=num_bytes,
            slab=self._lay(put.columns, grant),
        )
        lengths = {name: packed(np.array(own.lengths)) for name, own in put.columns.items()}
        for name, own in put.shared.items():
            lengths[name] = packed(np.repeat(np.array(own.lengths), put.sizes))
        told = rows_notice(record, numbers, lengths=lengths, names=put.names)
        self.notices.append(Notice(told, record.states, len(numbers)))

    def _lay(self, columns: Mapping[str, Packed], grant: Grant | None) -> Slab | None:
        """The slab of the columns: where their writer laid them, else a copy; None without columns."""
        if not columns:
            return None
        return self.slabs.store(columns) if grant is None else self.slabs.adopt(columns, grant)

    def _add_columns(
        self,
        state: str,
        fresh: Sequence[Named],
        columns: Mapping[str, Packed],
        uids: Sequence[str],
        grant: Grant | None,
    ) -> None:
        """Give the fresh rows their part of the columns."""
        for name, column in columns.items():
            if len(column.lengths) != len(uids):
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows, the write {len(uids)}"
                )
        for record, _, numbers in fresh:
            check_columns(record, numbers, columns)
        sizes = _row_bytes(columns, len(uids))
        grown = [record.growth(numbers, sizes[places]) for record, places, numbers in fresh]
        needed = sum([int(growth.sum()) for growth in grown])
        if self.charged_bytes + needed > self.capacity_bytes:
            raise NoRoom(needed)
        parts = {}
        for record, places, _ in fresh:
            whole = len(places) == len(uids)
            own = places.tolist()
            parts[record] = columns if whole else {n: c.take(own) for n, c in columns.items()}
        self.slabs.require(sum([slab_bytes(own) for own in parts.values()]))
        self.charge(needed)
        for (record, places, numbers), growth in zip(fresh, grown, strict=True):
            record.columns.learn_formats(parts[record], {})
            record.rows["charge"][numbers] += growth
            record.rows["num_bytes"][numbers] += sizes[places]
            lies = grant if parts[record] is columns else None
            record.columns.place(state, numbers, self._lay(parts[record], lies))

    def _admit_new(self, batch: str, needed: int) -> None:
        limit = int(self.capacity_bytes * (1 - self.derived_share))
        if needed > limit:
            raise DockFull(
                f"{needed} bytes of {batch} in one put never fit: new rows may fill {limit} of "
                f"{self.capacity_bytes} bytes; raise spec.dock.capacity or put fewer rows at once"
            )
        if self.charged_bytes + needed > limit:
            raise NoRoom(needed)

    def _free(self, record: BatchRecord, numbers: Array) -> None:
        if not len(numbers):
            return
        charged, runs = record.remove(numbers)
        self.charged_bytes -= charged
        self.slabs.free(runs)
        record.columns.forget(runs)
        if not record.live:
            del self.live[record.name]
            self._forget_old()

    def _forget_old(self) -> None:
        rows = sum([record.known - record.live for record in self.batches.values()])
        ended = [name for name, record in self.batches.items() if not record.live]
        for number, name in enumerate(ended):
            if rows <= REMEMBERED_ROWS and len(ended) - number <= REMEMBERED_BATCHES:
                return
            rows -= self.batches.pop(name).known


def _row_bytes(columns: Mapping[str, Packed], num_rows: int) -> Array:
    """Bytes of each row over all columns."""
    total = np.zeros(num_rows, dtype=np.int64)
    for column in columns.values():
        total += column.sizes
    return total
