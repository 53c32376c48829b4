"""Notices: the metadata that warehouses broadcast, filtered for each controller, and snapshots.

A warehouse's store emits them, one for all rows of a message; what is here cuts them down to what one state
needs.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames, pack_names
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.wire.messages import (
    AckNotice,
    BatchNotice,
    ColumnNotice,
    Notices,
    RowsNotice,
    Snapshot,
    packed,
)


class Notice(NamedTuple):
    """One event in a warehouse. told: the name of a batch that was dropped, or what its type says.

    states: those that it concerns; None: all. rows: that it is about.
    """

    told: BatchNotice | RowsNotice | ColumnNotice | AckNotice | str
    states: tuple[str, ...] | None = None
    rows: int = 1


def rows_notice(
    record: BatchRecord, numbers: Array, *, lengths: Mapping[str, bytes], names: PackedNames
) -> RowsNotice:
    """Rows of a batch by ascending numbers, with the lengths of their columns now."""
    groups, of_groups = record.columns.groups_of(numbers), record.groups
    return RowsNotice(
        batch=record.name,
        numbers=packed(numbers),
        names=names,
        versions=packed(record.rows["version"][numbers]),
        lengths=dict(lengths),
        firsts=packed(of_groups["first"][groups]),
        sizes=packed(of_groups["size"][groups]),
        indexes=packed(of_groups["index"][groups]),
        groups=record.group_names.packed(groups),
    )


def column_notice(record: BatchRecord, column: str, numbers: Array) -> ColumnNotice:
    """Rows of a batch got a column."""
    return ColumnNotice(
        batch=record.name,
        column=column,
        numbers=packed(numbers),
        lengths=packed(record.columns.lengths(column, numbers)),
        versions=packed(record.rows["version"][numbers]),
    )


def ack_notice(record: BatchRecord, numbers: Array) -> AckNotice:
    """A state acknowledged rows of a batch."""
    return AckNotice(batch=record.name, numbers=packed(numbers))


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
    records: Iterable[BatchRecord], *, state: str, needs: frozenset[str], epoch: str
) -> Snapshot:
    """All that a controller must know of a warehouse: its batches and its unacknowledged rows."""
    snapshot = Snapshot(epoch=epoch, batches=[], rows=[])
    for record in records:
        passes = state in record.states
        known = record.known if passes else 0
        acked = record.acked.get(state, 0)
        snapshot.batches.append(
            BatchNotice(record.name, record.total, record.states, known, acked, record.dropped)
        )
        live = record.live_rows()
        live = live[~record.acknowledged(state, live)]
        if passes and len(live):
            lengths = {
                name: record.columns.lengths(name, live)
                for name in needs & record.columns.formats.keys()
            }
            told = {name: packed(own) for name, own in lengths.items() if (own >= 0).any()}
            names = pack_names(record.uids(live))
            snapshot.rows.append(rows_notice(record, live, lengths=told, names=names))
    return snapshot


def _cut(rows: RowsNotice, needs: frozenset[str]) -> RowsNotice:
    if needs.issuperset(rows.lengths):
        return rows
    lengths = {name: length for name, length in rows.lengths.items() if name in needs}
    return msgspec.structs.replace(rows, lengths=lengths)
