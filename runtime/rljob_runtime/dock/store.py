"""What one warehouse holds: rows, their columns, their acknowledgements, and the room left.

Pure: no I/O, no clock. The warehouse server applies messages to it and broadcasts its notices.
"""

# n rows of one message

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.dock.batch_record import BatchRecord, Cell, GroupCells, StoredRow, cells_of
from rljob_runtime.dock.columns import Format, Ragged
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.notices import Notice
from rljob_runtime.dock.rows import Written
from rljob_runtime.errors import DockFull, DockLost, DockRefused

ROW_BYTES = 256
"""Charged for each row beside its columns, so that rows without bytes are bounded too."""
REMEMBERED_ROWS = 50_000
"""Freed rows whose uids are kept, so that a late write or a repeated put is known as such."""


class NoRoom(Exception):
    """The message does not fit now; park it and try again when rows were freed."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes do not fit")
        self.num_bytes = num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHead:
    """A new row's identity, as a put message carries it."""

    uid: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    reserve_bytes: int


@dataclass(slots=True, kw_only=True)
class WarehouseStore:
    """Rows of all batches in one warehouse.

    capacity_bytes bounds what is charged: columns, reserves of rows and ROW_BYTES a row.
    derived_share of it is kept from new rows, so that columns of existing rows find room first.
    """

    graph: StateGraph
    capacity_bytes: int
    derived_share: float = 0.25
    charged_bytes: int = 0
    peak_bytes: int = 0
    rows: dict[str, StoredRow] = field(default_factory=dict)
    batches: dict[str, BatchRecord] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)

    def put_rows(
        self,
        batch: str,
        *,
        total: int,
        states: Sequence[str],
        heads: Sequence[RowHead],
        columns: Mapping[str, Ragged],
        group_columns: Mapping[str, Ragged],
    ) -> int:
        """Store new rows; those that are or were here are skipped. Returns how many were new.

        columns: n rows each; group_columns: one row a group, in order of first appearance.
        Raises DockRefused, DockFull (never fits), NoRoom (not now); nothing is stored then.
        """
        record = self._batch_for_put(batch, total, states, [*columns, *group_columns])
        self._check_put(record, heads, columns, group_columns)
        fresh = [i for i, head in enumerate(heads) if not self._known(record, head)]
        groups = {head.group: None for head in heads}
        place = {group: i for i, group in enumerate(groups)}
        new_groups = {heads[i].group for i in fresh} - set(record.groups)
        charges = self._charges(heads, columns)
        shared = _group_charges(group_columns, len(groups))
        needed = sum(charges[i] for i in fresh) + sum(shared[place[g]] for g in new_groups)
        self._admit_new(batch, needed)
        if batch not in self.batches:
            self.batches[batch] = record
            self.notices.append(Notice.of_batch(batch, total, record.states))
        record.learn_formats(columns, group_columns)
        group_cells = cells_of(group_columns, len(groups))
        for group in new_groups:
            record.groups[group] = GroupCells(group_cells[place[group]], shared[place[group]])
        cells = cells_of(columns, len(heads))
        for i in fresh:
            row = StoredRow(head=heads[i], batch=batch, cells=cells[i], charge=charges[i])
            self._insert(record, row)
        self.charged_bytes += needed
        self.peak_bytes = max(self.peak_bytes, self.charged_bytes)
        return len(fresh)

    def write(
        self,
        *,
        state: str,
        lease: str,
        uids: Sequence[str],
        columns: Mapping[str, Ragged],
        version: int | None,
    ) -> Written:
        """Store a state's columns and acknowledge its rows; the first write of a row wins.

        A row takes all columns from one write. Raises DockRefused, DockLost, NoRoom; nothing is
        stored then.
        """
        writes = self.graph.state(state).writes
        if set(columns) != set(writes):
            raise DockRefused(
                f"state {state} wrote columns {sorted(columns)}; it must write {sorted(writes)}"
            )
        if len(set(uids)) != len(uids):
            raise DockRefused(f"a write of state {state} names a row twice")
        fresh, duplicates, foreign = self._sort_out(state, lease, uids)
        for name, column in columns.items():
            if len(column) != len(uids):
                raise DockRefused(f"column {name} has {len(column)} rows, the write {len(uids)}")
        for batch in {self.rows[uids[i]].batch for i in fresh}:
            self.batches[batch].check_formats(columns)
        sizes = [sum(row) for row in zip(*[c.row_bytes() for c in columns.values()], strict=True)]
        growth = {i: self._growth(uids[i], sizes[i]) for i in fresh} if sizes else {}
        if self.charged_bytes + sum(growth.values()) > self.capacity_bytes:
            raise NoRoom(sum(growth.values()))
        cells = cells_of(columns, len(uids))
        for i in fresh:
            row = self.rows[uids[i]]
            self.batches[row.batch].learn_formats(columns, {})
            row.charge += growth.get(i, 0)
            self.charged_bytes += growth.get(i, 0)
            self.peak_bytes = max(self.peak_bytes, self.charged_bytes)
            row.num_bytes += sizes[i] if sizes else 0
            row.cells.update(cells[i])
            row.version = row.version if version is None else version
            for name in columns:
                self.notices.append(Notice.of_column(row, name))
            self._acknowledge(row, state, lease)
        return Written(stored=len(fresh), duplicates=tuple(duplicates), foreign=tuple(foreign))

    def read(self, uids: Sequence[str], column: str) -> tuple[Format, bool, list[Cell]]:
        """A column's format, whether it is the groups', and its cells.

        One cell a row, or one a group in order of first appearance. Raises DockLost, DockRefused.
        """
        rows = [self._live(uid) for uid in uids]
        records = {row.batch: self.batches[row.batch] for row in rows}
        forms = {record.formats.get(column) for record in records.values()}
        if None in forms or len(forms) != 1:
            raise DockRefused(f"column {column!r} was not written to every batch of {[*records]}")
        form = forms.pop()
        assert form is not None, "a column without a format"
        if any(column in record.group_names for record in records.values()):
            groups = {(row.batch, row.head.group): None for row in rows}
            return form, True, [records[b].groups[g].cells[column] for b, g in groups]
        for row in rows:
            if column not in row.cells:
                raise DockRefused(f"row {row.head.uid} has no column {column!r} yet")
        return form, False, [row.cells[column] for row in rows]

    def drop_batch(self, batch: str) -> int:
        """Free a batch's rows for good; its name cannot be used again. Returns rows freed."""
        record = self.batches.setdefault(batch, BatchRecord(name=batch, total=0, states=()))
        live = list(record.live)
        record.dropped = True
        for uid in live:
            self._free(self.rows[uid])
        self.notices.append(Notice.of_drop(batch))
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

    def _batch_for_put(
        self, batch: str, total: int, states: Sequence[str], columns: Sequence[str]
    ) -> BatchRecord:
        record = self.batches.get(batch)
        if record is None:
            self.graph.check_new_rows(batch, states, columns)
            return BatchRecord(name=batch, total=total, states=tuple(states))
        if record.dropped:
            raise DockLost(f"batch {batch} was dropped; put its rows under another name")
        if (record.total, record.states) != (total, tuple(states)):
            raise DockRefused(
                f"batch {batch} was put with total={record.total} and states "
                f"{list(record.states)}, now with total={total} and states {list(states)}"
            )
        return record

    def _check_put(
        self,
        record: BatchRecord,
        heads: Sequence[RowHead],
        columns: Mapping[str, Ragged],
        group_columns: Mapping[str, Ragged],
    ) -> None:
        sizes = Counter(head.group for head in heads)
        for head in heads:
            if head.group_size != sizes[head.group]:
                raise DockRefused(
                    f"group {head.group} has {head.group_size} rows, this put {sizes[head.group]}; "
                    "put all rows of a group at once"
                )
        for expected, part in ((len(heads), columns), (len(sizes), group_columns)):
            for name, column in part.items():
                if len(column) != expected:
                    raise DockRefused(
                        f"column {name} has {len(column)} rows; {record.name} needs {expected}"
                    )
        if len({head.uid for head in heads}) != len(heads):
            raise DockRefused(f"two new rows of {record.name} have one uid")
        record.check_formats(columns)
        record.check_formats(group_columns)
        for head in heads:
            other = self.rows.get(head.uid)
            if other is not None and (other.batch, other.head.group) != (record.name, head.group):
                raise DockRefused(f"row {head.uid} is in group {other.head.group} already")

    def _known(self, record: BatchRecord, head: RowHead) -> bool:
        return head.uid in record.live or head.uid in record.freed

    def _charges(self, heads: Sequence[RowHead], columns: Mapping[str, Ragged]) -> list[int]:
        per_column = [column.row_bytes() for column in columns.values()]
        return [
            ROW_BYTES + head.reserve_bytes + sum(sizes[i] for sizes in per_column)
            for i, head in enumerate(heads)
        ]

    def _admit_new(self, batch: str, needed: int) -> None:
        limit = int(self.capacity_bytes * (1 - self.derived_share))
        if needed > limit:
            raise DockFull(
                f"{needed} bytes of {batch} in one put never fit: new rows may fill {limit} of "
                f"{self.capacity_bytes} bytes; raise spec.dock.capacity or put fewer rows at once"
            )
        if self.charged_bytes + needed > limit:
            raise NoRoom(needed)

    def _insert(self, record: BatchRecord, row: StoredRow) -> None:
        row.num_bytes = row.charge - ROW_BYTES - row.head.reserve_bytes
        self.rows[row.head.uid] = row
        record.live[row.head.uid] = None
        record.known += 1
        record.groups[row.head.group].live += 1
        self.notices.append(Notice.of_row(row, record))

    def _live(self, uid: str) -> StoredRow:
        row = self.rows.get(uid)
        if row is None:
            raise DockLost(
                f"row {uid} is not in this warehouse: every state has acknowledged it, its batch "
                "was dropped, or the warehouse restarted"
            )
        return row

    def _sort_out(
        self, state: str, lease: str, uids: Sequence[str]
    ) -> tuple[list[int], list[str], list[str]]:
        """Indices of rows that are new to the state; duplicates; duplicates by another lease."""
        fresh: list[int] = []
        duplicates: list[str] = []
        foreign: list[str] = []
        for i, uid in enumerate(uids):
            row = self.rows.get(uid)
            acks = row.acks if row is not None else self._freed_acks(uid)
            if row is not None and state not in self.batches[row.batch].states:
                raise DockRefused(f"row {uid} does not pass state {state}")
            if row is not None and state not in acks:
                fresh.append(i)
                continue
            duplicates.append(uid)
            if acks.get(state) != lease:
                foreign.append(uid)
        return fresh, duplicates, foreign

    def _freed_acks(self, uid: str) -> dict[str, str]:
        for record in self.batches.values():
            if uid in record.freed and not record.dropped:
                return record.freed[uid]
        self._live(uid)
        raise AssertionError(f"row {uid} is live but was not found")

    def _growth(self, uid: str, added: int) -> int:
        """Bytes to charge beyond the row's reserve."""
        row = self.rows[uid]
        return max(0, ROW_BYTES + row.num_bytes + added - row.charge)

    def _acknowledge(self, row: StoredRow, state: str, lease: str) -> None:
        row.acks[state] = lease
        record = self.batches[row.batch]
        record.acked[state] = record.acked.get(state, 0) + 1
        self.notices.append(Notice.of_ack(row, state))
        if all(name in row.acks for name in record.states):
            self._free(row)

    def _free(self, row: StoredRow) -> None:
        record = self.batches[row.batch]
        group = record.groups[row.head.group]
        group.live -= 1
        self.charged_bytes -= row.charge
        if not group.live:
            self.charged_bytes -= group.charge
            del record.groups[row.head.group]
        del self.rows[row.head.uid], record.live[row.head.uid]
        record.freed[row.head.uid] = row.acks
        if not record.live:
            self._forget_old()

    def _forget_old(self) -> None:
        remembered = sum(len(record.freed) for record in self.batches.values())
        for name in [name for name, record in self.batches.items() if not record.live]:
            if remembered <= REMEMBERED_ROWS:
                return
            remembered -= len(self.batches.pop(name).freed)


def _group_charges(group_columns: Mapping[str, Ragged], num_groups: int) -> list[int]:
    per_column = [column.row_bytes() for column in group_columns.values()]
    return [sum(sizes[i] for sizes in per_column) for i in range(num_groups)]
