"""Notices: the metadata that warehouses broadcast, filtered for each controller, and snapshots.

A warehouse's store emits them, one for all rows of a message; what is here cuts them down to what one state
needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.warehouse.batch_record import BatchRecord, StoredRow
from rljob_runtime.dock.wire.messages import (
    AckNotice,
    BatchNotice,
    ColumnNotice,
    Notices,
    RowsNotice,
    Snapshot,
    packed,
)

LACKS = -1
"""Length of a column that a row has not."""


class Notice(NamedTuple):
    """One event in a warehouse. told: the name of a batch that was dropped, or what its type says.

    states: those that it concerns; None: all. rows: that it is about.
    """

    told: BatchNotice | RowsNotice | ColumnNotice | AckNotice | str
    states: tuple[str, ...] | None = None
    rows: int = 1


def rows_notice(record: BatchRecord, rows: Sequence[StoredRow]) -> RowsNotice:
    """Rows of a batch in order of their numbers, with the lengths of all their columns now."""
    groups = {row.head.group: row.number - row.head.sample for row in rows}
    heads = {row.head.group: row.head for row in rows}
    shared = [record.groups[row.head.group].cells for row in rows]
    names = {name for row in rows for name in row.cells} | {n for cells in shared for n in cells}
    return RowsNotice(
        batch=record.name,
        numbers=_packed([row.number for row in rows]),
        names=pack_names([row.head.uid for row in rows]),
        versions=_packed([row.version for row in rows]),
        lengths={
            name: _packed([
                cell.length if (cell := row.cells.get(name) or cells.get(name)) else LACKS
                for row, cells in zip(rows, shared, strict=True)
            ])
            for name in names
        },
        firsts=_packed([*groups.values()]),
        sizes=_packed([heads[group].group_size for group in groups]),
        indexes=_packed([heads[group].group_index for group in groups]),
        groups=pack_names([*groups]),
    )  # fmt: skip


def column_notice(batch: str, column: str, rows: Sequence[StoredRow]) -> ColumnNotice:
    """Rows of a batch got a column."""
    return ColumnNotice(
        batch=batch,
        column=column,
        numbers=_packed([row.number for row in rows]),
        lengths=_packed([row.cells[column].length for row in rows]),
        versions=_packed([row.version for row in rows]),
    )


def ack_notice(batch: str, rows: Sequence[StoredRow]) -> AckNotice:
    """A state acknowledged rows of a batch."""
    return AckNotice(batch=batch, numbers=_packed([row.number for row in rows]))


def notices_for(notices: Iterable[Notice], *, state: str, needs: frozenset[str]) -> Notices:
    """What of these events one state's controller must know, in their order."""
    message = Notices()
    for told, states, _ in notices:
        if states is not None and state not in states:
            continue
        if isinstance(told, RowsNotice):
            message.rows.append(_cut(told, needs))
        elif isinstance(told, ColumnNotice):
            if told.column in needs:
                message.columns.append(told)
        elif isinstance(told, AckNotice):
            message.acks.append(told)
        elif isinstance(told, BatchNotice):
            message.batches.append(told)
        else:
            message.drops.append(told)
    return message


def snapshot_for(
    records: Iterable[BatchRecord],
    stored: Mapping[str, StoredRow],
    *,
    state: str,
    needs: frozenset[str],
    epoch: str,
) -> Snapshot:
    """All that a controller must know of a warehouse: its batches and its unacknowledged rows. stored: by
    uid."""
    snapshot = Snapshot(epoch=epoch, batches=[], rows=[])
    for record in records:
        passes = state in record.states
        known = record.known if passes else 0
        acked = record.acked.get(state, 0)
        snapshot.batches.append(
            BatchNotice(record.name, record.total, record.states, known, acked, record.dropped)
        )
        rows = [row for uid in record.live if passes and state not in (row := stored[uid]).acks]
        if rows:
            snapshot.rows.append(_cut(rows_notice(record, rows), needs))
    return snapshot


def _cut(rows: RowsNotice, needs: frozenset[str]) -> RowsNotice:
    lengths = {name: length for name, length in rows.lengths.items() if name in needs}
    return msgspec.structs.replace(rows, lengths=lengths)


def _packed(numbers: Sequence[int]) -> bytes:
    return packed(np.array(numbers, dtype=np.int64))
