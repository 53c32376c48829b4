"""What one warehouse holds: rows, their columns, their acknowledgements, and the room left.

No I/O, no clock: columns go into the memory it is given. The warehouse server applies messages to it
and broadcasts its notices.
"""

# n rows of one message

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rljob_runtime.dock.columns import Format, Packed
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.warehouse.batch_record import (
    ROW_BYTES,
    BatchRecord,
    GroupCells,
    StoredRow,
)
from rljob_runtime.dock.warehouse.cells import Cell, CellMemory, NoRoom
from rljob_runtime.dock.warehouse.notices import (
    Notice,
    ack_notice,
    column_notice,
    rows_notice,
)
from rljob_runtime.dock.warehouse.put_rules import batch_for_put, check_put, total_row_bytes
from rljob_runtime.dock.warehouse.write_rules import check_columns, live_row, sort_out
from rljob_runtime.dock.wire.memory import Memory
from rljob_runtime.dock.wire.messages import BatchNotice, RowHead, Written
from rljob_runtime.errors import DockFull, DockRefused

REMEMBERED_ROWS = 50_000
"""Freed rows whose uids are kept, so that a late write or a repeated put is known as such."""


class ColumnCells(NamedTuple):
    """Where a column is: one cell a row, or where it is `of_groups` one a group, in order of their
    first appearance."""

    name: str
    form: Format
    of_groups: bool
    cells: list[Cell]


@dataclass(slots=True, kw_only=True)
class WarehouseStore:
    """Rows of all batches in one warehouse.

    capacity_bytes bounds what is charged: columns, reserves of rows and ROW_BYTES a row.
    derived_share of it is kept from new rows, so that columns of existing rows find room first.
    memory: where columns lie, of capacity_bytes at least; default: this process's own.
    """

    graph: StateGraph
    capacity_bytes: int
    derived_share: float = 0.25
    memory: Memory | None = None
    cells: CellMemory = field(init=False)
    charged_bytes: int = 0
    peak_bytes: int = 0
    rows: dict[str, StoredRow] = field(default_factory=dict)
    batches: dict[str, BatchRecord] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cells = CellMemory(self.memory or Memory(self.capacity_bytes))

    def put_rows(
        self,
        batch: str,
        *,
        total: int,
        states: Sequence[str],
        heads: Sequence[RowHead],
        columns: Mapping[str, Packed],
        group_columns: Mapping[str, Packed],
    ) -> int:
        """Store new rows; those that are or were here are skipped. Returns how many were new.

        columns: n rows each; group_columns: one row a group, in order of first appearance.
        Raises DockRefused, DockFull (never fits), NoRoom (not now); nothing is stored then.
        """
        names = [*columns, *group_columns]
        record = batch_for_put(
            self.batches.get(batch), self.graph, batch, total=total, states=states, columns=names
        )
        check_put(record, self.rows, heads, columns, group_columns)
        place = {group: i for i, group in enumerate(dict.fromkeys(head.group for head in heads))}
        fresh = [i for i, head in enumerate(heads) if not record.knows(head.uid)]
        groups = dict.fromkeys(heads[i].group for i in fresh)
        new_groups = [group for group in groups if group not in record.groups]
        sizes = total_row_bytes(columns, len(heads))
        shared = total_row_bytes(group_columns, len(place))
        stored = sum(sizes[i] for i in fresh) + sum(shared[place[g]] for g in new_groups)
        needed = stored + sum(ROW_BYTES + heads[i].reserve_bytes for i in fresh)
        self._admit_new(batch, needed)
        self.cells.require(stored)
        if batch not in self.batches:
            self.batches[batch] = record
            self.notices.append(Notice(BatchNotice(batch, total, record.states)))
        record.learn_formats(columns, group_columns)
        group_cells = self.cells.store(group_columns, [place[group] for group in new_groups])
        for group, cells in zip(new_groups, group_cells, strict=True):
            record.groups[group] = GroupCells(cells, shared[place[group]])
        rows = [
            StoredRow(
                head=heads[i],
                batch=batch,
                number=number,
                cells=cells,
                charge=ROW_BYTES + heads[i].reserve_bytes + sizes[i],
            )
            for number, (i, cells) in enumerate(
                zip(fresh, self.cells.store(columns, fresh), strict=True), record.known
            )
        ]
        self._insert(record, rows)
        self.charged_bytes += needed
        self.peak_bytes = max(self.peak_bytes, self.charged_bytes)
        return len(fresh)

    def write(
        self,
        *,
        state: str,
        lease: str,
        uids: Sequence[str],
        columns: Mapping[str, Packed],
        version: int | None,
    ) -> Written:
        """Store a state's columns and acknowledge its rows; the first write of a row wins.

        Columns that the graph does not know may come beside the state's own; whoever knows of them
        may read them. A row takes all columns from one write. Raises DockRefused, DockLost, NoRoom;
        nothing is stored then.
        """
        if len(set(uids)) != len(uids):
            raise DockRefused(f"a write of state {state} names a row twice")
        fresh, duplicates, foreign = sort_out(self.rows, self.batches, state, lease, uids)
        for batch in {self.rows[uids[i]].batch for i in fresh}:
            self.graph.check_write(state, list(columns), self.batches[batch].states)
        rows = [self.rows[uids[i]] for i in fresh]
        if columns:
            self._add_columns(rows, fresh, columns, len(uids), version)
        elif version is not None:
            for row in rows:
                row.version = version
        self._acknowledge(rows, state, lease)
        return Written(stored=len(fresh), duplicates=tuple(duplicates), foreign=tuple(foreign))

    def read(self, uids: Sequence[str], columns: Sequence[str]) -> list[ColumnCells]:
        """Where the columns of the rows are. Raises DockLost, DockRefused."""
        rows = [live_row(self.rows, uid) for uid in uids]
        return [self._column(rows, name) for name in columns]

    def drop_batch(self, batch: str) -> int:
        """Free a batch's rows for good; its name cannot be used again. Returns rows freed."""
        record = self.batches.setdefault(batch, BatchRecord(name=batch, total=0, states=()))
        live = list(record.live)
        record.dropped = True
        self._free([self.rows[uid] for uid in live])
        self.notices.append(Notice(batch))
        return len(live)

    def take_notices(self) -> list[Notice]:
        """What happened since the last call, in order."""
        taken, self.notices = self.notices, []
        return taken

    def stuck_state(self) -> tuple[str, int] | None:
        """The state that most rows are ready for and wait on, with their number."""
        counts = dict.fromkeys(self.graph.names, 0)
        for row in self.rows.values():
            record = self.batches[row.batch]
            for name in record.states:
                needs = self.graph.state(name).needs
                ready = all(c in row.cells or c in record.group_names for c in needs)
                counts[name] += ready and name not in row.acks
        state = max(counts, key=lambda name: counts[name], default=None)
        return (state, counts[state]) if state is not None and counts[state] else None

    def unacknowledged(self) -> dict[str, int]:
        """Live rows that each state has not acknowledged."""
        counts = dict.fromkeys(self.graph.names, 0)
        for row in self.rows.values():
            for name in self.batches[row.batch].states:
                counts[name] += name not in row.acks
        return counts

    def _add_columns(
        self,
        rows: Sequence[StoredRow],
        places: Sequence[int],
        columns: Mapping[str, Packed],
        num_written: int,
        version: int | None,
    ) -> None:
        """Give the rows their part of the columns: those at `places` of the `num_written`."""
        for name, column in columns.items():
            if len(column.lengths) != num_written:
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows, the write {num_written}"
                )
        check_columns(rows, self.batches, columns)
        all_sizes = total_row_bytes(columns, num_written)
        sizes = [all_sizes[i] for i in places]
        growth = [row.growth(size) for row, size in zip(rows, sizes, strict=True)]
        if self.charged_bytes + sum(growth) > self.capacity_bytes:
            raise NoRoom(sum(growth))
        self.cells.require(sum(sizes))
        for batch in {row.batch for row in rows}:
            self.batches[batch].learn_formats(columns, {})
        self.charged_bytes += sum(growth)
        self.peak_bytes = max(self.peak_bytes, self.charged_bytes)
        stored = self.cells.store(columns, places)
        for row, cells, size, grown in zip(rows, stored, sizes, growth, strict=True):
            row.charge += grown
            row.num_bytes += size
            row.cells.update(cells)
            row.version = row.version if version is None else version
        for batch, own in _by_batch(rows).items():
            self.notices += [
                Notice(column_notice(batch, name, own), rows=len(own)) for name in columns
            ]

    def _column(self, rows: Sequence[StoredRow], name: str) -> ColumnCells:
        records = {row.batch: self.batches[row.batch] for row in rows}
        forms = {record.formats.get(name) for record in records.values()}
        form = forms.pop() if len(forms) == 1 else None
        if form is None:
            raise DockRefused(f"column {name!r} was not written to every batch of {[*records]}")
        if any(name in record.group_names for record in records.values()):
            groups = dict.fromkeys((row.batch, row.head.group) for row in rows)
            return ColumnCells(
                name, form, True, [records[b].groups[g].cells[name] for b, g in groups]
            )
        try:
            return ColumnCells(name, form, False, [row.cells[name] for row in rows])
        except KeyError:
            lacking = next(row.head.uid for row in rows if name not in row.cells)
            raise DockRefused(f"row {lacking} has no column {name!r} yet") from None

    def _admit_new(self, batch: str, needed: int) -> None:
        limit = int(self.capacity_bytes * (1 - self.derived_share))
        if needed > limit:
            raise DockFull(
                f"{needed} bytes of {batch} in one put never fit: new rows may fill {limit} of "
                f"{self.capacity_bytes} bytes; raise spec.dock.capacity or put fewer rows at once"
            )
        if self.charged_bytes + needed > limit:
            raise NoRoom(needed)

    def _insert(self, record: BatchRecord, rows: Sequence[StoredRow]) -> None:
        for row in rows:
            row.num_bytes = row.charge - ROW_BYTES - row.head.reserve_bytes
            self.rows[row.head.uid] = row
            record.live[row.head.uid] = None
            record.groups[row.head.group].live += 1
        record.known += len(rows)
        if rows:
            told = rows_notice(record, rows)
            self.notices.append(Notice(told, record.states, len(rows)))

    def _acknowledge(self, rows: Sequence[StoredRow], state: str, lease: str) -> None:
        ended = []
        for row in rows:
            row.acks[state] = lease
            record = self.batches[row.batch]
            record.acked[state] = record.acked.get(state, 0) + 1
            if len(row.acks) == len(record.states):
                ended.append(row)
        for batch, own in _by_batch(rows).items():
            self.notices.append(Notice(ack_notice(batch, own), (state,), len(own)))
        self._free(ended)

    def _free(self, rows: Sequence[StoredRow]) -> None:
        cells: list[Cell] = []
        for row in rows:
            record = self.batches[row.batch]
            group = record.groups[row.head.group]
            group.live -= 1
            self.charged_bytes -= row.charge
            cells.extend(row.cells.values())
            if not group.live:
                self.charged_bytes -= group.charge
                cells += group.cells.values()
                del record.groups[row.head.group]
            del self.rows[row.head.uid], record.live[row.head.uid]
            record.remember(row.head.uid, row.acks)
        self.cells.free(cells)
        done = {row.batch for row in rows if not self.batches[row.batch].live}
        for batch in done:
            self.batches[batch].settle()
        if done:
            self._forget_old()

    def _forget_old(self) -> None:
        remembered = sum(len(record.freed) for record in self.batches.values())
        for name in [name for name, record in self.batches.items() if not record.live]:
            if remembered <= REMEMBERED_ROWS:
                return
            remembered -= len(self.batches.pop(name).freed)


def _by_batch(rows: Sequence[StoredRow]) -> dict[str, list[StoredRow]]:
    found: dict[str, list[StoredRow]] = {}
    for row in rows:
        found.setdefault(row.batch, []).append(row)
    return found
