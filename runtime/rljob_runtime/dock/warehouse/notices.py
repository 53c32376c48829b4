"""Notices: the metadata that warehouses broadcast, filtered for each controller, and snapshots.

A warehouse's store emits them; what is here cuts them down to what one state needs.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rljob_runtime.dock.warehouse.batch_record import BatchRecord, StoredRow
from rljob_runtime.dock.wire.messages import (
    AckNotice,
    BatchNotice,
    ColumnNotice,
    Notices,
    RowNotice,
    Snapshot,
)


class Notice(NamedTuple):
    """One event in a warehouse. told: the name of a batch that was dropped, or what its type says.

    states: those that it concerns; None: all.
    """

    told: BatchNotice | RowNotice | ColumnNotice | AckNotice | str
    states: tuple[str, ...] | None = None


def row_notice(row: StoredRow, record: BatchRecord) -> RowNotice:
    """A row's metadata, with the lengths of all its columns now."""
    uid, group, group_index, group_size, sample, *_ = row.head
    lengths = {name: cell.length for name, cell in record.groups[group].cells.items()}
    for name, cell in row.cells.items():
        lengths[name] = cell.length
    place = (uid, row.batch, group, group_index, group_size, sample)
    return RowNotice(*place, row.version, lengths)


def column_notice(row: StoredRow, column: str) -> ColumnNotice:
    """A row got a column."""
    return ColumnNotice(row.head.uid, column, row.cells[column].length, row.version)


def notices_for(notices: Iterable[Notice], *, state: str, needs: frozenset[str]) -> Notices:
    """The message for one state's controller; empty lists where nothing concerns it."""
    message = Notices()
    for told, states in notices:
        if states is not None and state not in states:
            continue
        if isinstance(told, RowNotice):
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
        known = record.known if state in record.states else 0
        acked = record.acked.get(state, 0)
        snapshot.batches.append(
            BatchNotice(record.name, record.total, record.states, known, acked, record.dropped)
        )
        for uid in record.live if state in record.states else ():
            row = stored[uid]
            if state not in row.acks:
                snapshot.rows.append(_cut(row_notice(row, record), needs))
    return snapshot


def _cut(row: RowNotice, needs: frozenset[str]) -> RowNotice:
    lengths = {name: length for name, length in row.lengths.items() if name in needs}
    return RowNotice(*row[:-1], lengths)
