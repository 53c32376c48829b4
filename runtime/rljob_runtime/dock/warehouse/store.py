"""The content of one warehouse: rows, their columns, their acknowledgements, and the remaining capacity.

No I/O, no clock: columns are stored in the memory that is passed. The warehouse server applies messages to it
and broadcasts its notices.
"""

# n rows of one message in G groups

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.columns import PackedColumn
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import ROW_BYTES, BatchRecord
from rljob_runtime.dock.warehouse.located import ColumnLocation, locate_columns
from rljob_runtime.dock.warehouse.named_rows import NamedRows, live_rows, named_rows
from rljob_runtime.dock.warehouse.notices import (
    Notice,
    ack_notice,
    column_notice,
    rows_notice,
)
from rljob_runtime.dock.warehouse.put_rules import ParsedPut, batch_for_put, only_new, read_put
from rljob_runtime.dock.warehouse.slabs import GrantedSpan, NoRoom, Slab, SlabMemory, slab_bytes
from rljob_runtime.dock.warehouse.write_rules import check_columns, sort_out
from rljob_runtime.dock.wire.memory import WarehouseMemory
from rljob_runtime.dock.wire.messages import BatchNotice, NewRows, WriteResult, pack_numbers
from rljob_runtime.errors import DockFull, DockRefused

REMEMBERED_ROWS, REMEMBERED_BATCHES = 50_000, 1_000
"""Number of freed rows whose uids are retained, so that a late write or a repeated put is recognized.

The second bounds batches without other rows, each of which takes some kilobytes however few rows it had.
"""


@dataclass(slots=True, kw_only=True)
class WarehouseStore:
    """The rows of all batches in one warehouse.

    capacity_bytes: upper bound of the charged bytes: columns, reserves of rows and ROW_BYTES a row.
    derived_share: part of it that is closed to new rows, so that columns of existing rows find room first.
    memory: stores the columns, at least capacity_bytes and grantable_bytes; default: private memory.
    grantable_bytes: part of it for slabs that writers fill.
    """

    graph: StateGraph
    capacity_bytes: int
    derived_share: float = 0.25
    memory: WarehouseMemory | None = None
    grantable_bytes: int = 0
    slabs: SlabMemory = field(init=False)
    charged_bytes: int = 0
    peak_bytes: int = 0
    batches: dict[str, BatchRecord] = field(default_factory=dict)
    live: dict[str, BatchRecord] = field(default_factory=dict)
    """Batches that have live rows."""
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = self.memory or WarehouseMemory(self.capacity_bytes)
        self.slabs = SlabMemory(memory, grantable_bytes=self.grantable_bytes)

    @property
    def num_rows(self) -> int:
        """The number of rows that are not gone."""
        return sum([record.live for record in self.live.values()])

    def put_rows(
        self,
        batch: str,
        *,
        total: int,
        states: Sequence[str],
        rows: NewRows,
        columns: Mapping[str, PackedColumn],
        group_columns: Mapping[str, PackedColumn],
        grant: GrantedSpan | None = None,
    ) -> int:
        """Store new rows and skip those that are or were here; return how many were new.

        columns: n rows each. group_columns: one row a group. grant: the span that contains them, which they
        stay in where all rows are new. Raises MalformedFrame, DockRefused, DockFull (never fits), NoRoom (not
        now); nothing is stored then.
        """
        parsed, column_names = read_put(rows, columns, group_columns), [*columns, *group_columns]
        record = batch_for_put(
            self.batches.get(batch),
            self.graph,
            batch,
            total=total,
            states=states,
            columns=column_names,
        )
        new_put = only_new(record, self.live, parsed)
        if not new_put.uids:
            return 0
        sizes, group_bytes = (
            _row_bytes(new_put.columns, len(new_put.uids)),
            _row_bytes(new_put.shared, len(new_put.sizes)),
        )
        # Reserves are unchecked client input: only sums that may be admitted are computed in 64 bits.
        needed = sum(new_put.reserves.tolist()) + ROW_BYTES * len(new_put.uids)
        needed += int(sizes.sum()) + int(group_bytes.sum())
        self._admit_new(batch, needed)
        self.slabs.require(slab_bytes(new_put.columns) + slab_bytes(new_put.shared))
        if batch not in self.batches:
            self.batches[batch] = record
            self.notices.append(Notice(BatchNotice(batch, total, record.states)))
        record.columns.add_formats(new_put.columns, new_put.shared)
        charges = new_put.reserves + (ROW_BYTES + sizes)
        slab_grant = grant if new_put.columns is columns else None
        self._add(
            record, new_put, slab_grant, charges=charges, num_bytes=sizes, group_charges=group_bytes
        )
        self.live[batch] = record
        self.charge(needed)
        return len(new_put.uids)

    def write(
        self,
        *,
        state: str,
        lease: str,
        uids: Sequence[str],
        columns: Mapping[str, PackedColumn],
        version: int | None,
        grant: GrantedSpan | None = None,
    ) -> WriteResult:
        """Store a state's columns and acknowledge its rows; the first write of a row wins.

        A write may also carry columns that the graph does not name; a reader may request them by name. A row
        takes all columns from one write. grant: as for `put_rows`. Raises DockRefused, DockLost, NoRoom;
        nothing is stored then.
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
            finished = record.acknowledge(state, lease, numbers)
            self.notices.append(Notice(ack_notice(record, numbers), (state,), len(numbers)))
            self._free(record, finished)
        return WriteResult(
            stored=sum([len(numbers) for _, _, numbers in fresh]),
            duplicates=tuple([uids[position] for position in duplicates]),
            foreign=tuple([uids[position] for position in foreign]),
        )

    def read(self, uids: Sequence[str], columns: Sequence[str]) -> list[ColumnLocation]:
        """Locate the columns of the rows. Raises DockLost, DockRefused."""
        named = live_rows(self.live, self.batches, uids)
        return locate_columns(named, columns)

    def drop_batch(self, batch: str) -> int:
        """Free a batch's rows for good and return their number; its name cannot be used again."""
        record = self.batches.setdefault(batch, BatchRecord(batch, total=0, states=()))
        live = record.live_rows()
        record.dropped = True
        self._free(record, live)
        self.notices.append(Notice(batch))
        return len(live)

    def take_notices(self) -> list[Notice]:
        """Return what happened since the last call, in order."""
        notices, self.notices = self.notices, []
        return notices

    def stuck_state(self) -> tuple[str, int] | None:
        """Return the state that most rows are ready for and wait on, with their number."""
        counts = dict.fromkeys(self.graph.names, 0)
        for record in self.live.values():
            live = record.live_rows()
            has_column = {
                name: record.columns.lengths(name, live) >= 0 for name in record.columns.formats
            }
            for name in record.states:
                ready = ~record.is_acknowledged(name, live)
                for column in self.graph.state(name).needs:
                    ready &= has_column.get(column, False)
                counts[name] += int(ready.sum())
        state = max(counts, key=lambda name: counts[name], default=None)
        return (state, counts[state]) if state is not None and counts[state] else None

    def unacknowledged(self) -> dict[str, int]:
        """Count the live rows that each state has not acknowledged."""
        counts = dict.fromkeys(self.graph.names, 0)
        for record in self.live.values():
            for name in record.states:
                counts[name] += record.known - record.acked.get(name, 0)
        return counts

    def charge(self, num_bytes: int) -> None:
        """Add to the bytes that are charged."""
        self.charged_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.charged_bytes)

    def _add(
        self,
        record: BatchRecord,
        put: ParsedPut,
        grant: GrantedSpan | None,
        *,
        charges: Array,
        num_bytes: Array,
        group_charges: Array,
    ) -> None:
        group_indices = record.add_groups(
            put.groups,
            sizes=put.sizes,
            indexes=put.indexes,
            charges=group_charges,
            slab=self._store_columns(put.shared, grant),
        )
        numbers = record.add_rows(
            put.uids,
            groups=np.repeat(group_indices, put.sizes),
            versions=put.versions,
            charges=charges,
            num_bytes=num_bytes,
            slab=self._store_columns(put.columns, grant),
        )
        lengths = {
            name: pack_numbers(np.array(column.lengths)) for name, column in put.columns.items()
        }
        for name, column in put.shared.items():
            lengths[name] = pack_numbers(np.repeat(np.array(column.lengths), put.sizes))
        notice = rows_notice(record, numbers, lengths=lengths, names=put.names)
        self.notices.append(Notice(notice, record.states, len(numbers)))

    def _store_columns(
        self, columns: Mapping[str, PackedColumn], grant: GrantedSpan | None
    ) -> Slab | None:
        """Return the slab of the columns: the writer's where it wrote them there, else a copy; None without
        columns."""
        if not columns:
            return None
        return self.slabs.store(columns) if grant is None else self.slabs.adopt(columns, grant)

    def _add_columns(
        self,
        state: str,
        fresh: Sequence[NamedRows],
        columns: Mapping[str, PackedColumn],
        uids: Sequence[str],
        grant: GrantedSpan | None,
    ) -> None:
        """Store the fresh rows' part of the columns."""
        for name, column in columns.items():
            if len(column.lengths) != len(uids):
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows, the write {len(uids)}"
                )
        for record, _, numbers in fresh:
            check_columns(record, numbers, columns)
        sizes = _row_bytes(columns, len(uids))
        growths = [record.growth(numbers, sizes[positions]) for record, positions, numbers in fresh]
        needed = sum([int(growth.sum()) for growth in growths])
        if self.charged_bytes + needed > self.capacity_bytes:
            raise NoRoom(needed)
        record_columns = {}
        for record, positions, _ in fresh:
            is_complete = len(positions) == len(uids)
            rows = positions.tolist()
            record_columns[record] = (
                columns if is_complete else {n: c.take(rows) for n, c in columns.items()}
            )
        self.slabs.require(
            sum([slab_bytes(part_columns) for part_columns in record_columns.values()])
        )
        self.charge(needed)
        for (record, positions, numbers), growth in zip(fresh, growths, strict=True):
            record.columns.add_formats(record_columns[record], {})
            record.rows["charge"][numbers] += growth
            record.rows["num_bytes"][numbers] += sizes[positions]
            slab_grant = grant if record_columns[record] is columns else None
            record.columns.assign_slab(
                state, numbers, self._store_columns(record_columns[record], slab_grant)
            )

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
        num_rows = sum([record.known - record.live for record in self.batches.values()])
        dead_batches = [name for name, record in self.batches.items() if not record.live]
        for number, name in enumerate(dead_batches):
            if num_rows <= REMEMBERED_ROWS and len(dead_batches) - number <= REMEMBERED_BATCHES:
                return
            num_rows -= self.batches.pop(name).known


def _row_bytes(columns: Mapping[str, PackedColumn], num_rows: int) -> Array:
    """Return the bytes of each row over all columns."""
    total = np.zeros(num_rows, dtype=np.int64)
    for column in columns.values():
        total += column.sizes
    return total
