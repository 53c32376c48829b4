"""Notices: the metadata that warehouses broadcast, filtered for each controller, and snapshots.

A warehouse's store emits one notice for all rows of a message; this module reduces it to what one state
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
    pack_numbers,
)


class Notice(NamedTuple):
    """One event in a warehouse.

    content: the name of a batch that was dropped, or the message that describes the event. states: those that
    it concerns; None: all. rows: number of rows that it is about.
    """

    content: BatchNotice | RowsNotice | ColumnNotice | AckNotice | str
    states: tuple[str, ...] | None = None
    rows: int = 1


def rows_notice(
    record: BatchRecord, numbers: Array, *, lengths: Mapping[str, bytes], names: PackedNames
) -> RowsNotice:
    """Describe rows of a batch by ascending numbers, with the current lengths of their columns."""
    groups, group_table = record.columns.groups_of(numbers), record.groups
    return RowsNotice(
        batch=record.name,
        numbers=pack_numbers(numbers),
        names=names,
        versions=pack_numbers(record.rows["version"][numbers]),
        lengths=dict(lengths),
        firsts=pack_numbers(group_table["first"][groups]),
        sizes=pack_numbers(group_table["size"][groups]),
        indexes=pack_numbers(group_table["index"][groups]),
        groups=record.group_names.packed(groups),
    )


def column_notice(record: BatchRecord, column: str, numbers: Array) -> ColumnNotice:
    """Describe a column that rows of a batch received."""
    return ColumnNotice(
        batch=record.name,
        column=column,
        numbers=pack_numbers(numbers),
        lengths=pack_numbers(record.columns.lengths(column, numbers)),
        versions=pack_numbers(record.rows["version"][numbers]),
    )


def ack_notice(record: BatchRecord, numbers: Array) -> AckNotice:
    """Describe rows of a batch that a state acknowledged."""
    return AckNotice(batch=record.name, numbers=pack_numbers(numbers))


def notices_for(notices: Iterable[Notice], *, state: str, needs: frozenset[str]) -> Notices:
    """Return the part of these events that one state's controller needs, in order."""
    message = Notices()
    for content, states, _ in notices:
        if states is not None and state not in states:
            continue
        if isinstance(content, RowsNotice):
            message.rows.append(_only_needed(content, needs))
        elif isinstance(content, ColumnNotice):
            if content.column in needs:
                message.columns.append(content)
        elif isinstance(content, AckNotice):
            message.acks.append(content)
        elif isinstance(content, BatchNotice):
            message.batches.append(content)
        else:
            message.drops.append(content)
    return message


def snapshot_for(
    records: Iterable[BatchRecord], *, state: str, needs: frozenset[str], epoch: str
) -> Snapshot:
    """Return the state of a warehouse for a controller: its batches and its unacknowledged rows."""
    snapshot = Snapshot(epoch=epoch, batches=[], rows=[])
    for record in records:
        passes = state in record.states
        known = record.known if passes else 0
        acked = record.acked.get(state, 0)
        snapshot.batches.append(
            BatchNotice(record.name, record.total, record.states, known, acked, record.dropped)
        )
        live = record.live_rows()
        live = live[~record.is_acknowledged(state, live)]
        if passes and len(live):
            lengths = {
                name: record.columns.lengths(name, live)
                for name in needs & record.columns.formats.keys()
            }
            packed_lengths = {
                name: pack_numbers(values)
                for name, values in lengths.items()
                if (values >= 0).any()
            }
            names = pack_names(record.uids(live))
            snapshot.rows.append(rows_notice(record, live, lengths=packed_lengths, names=names))
    return snapshot


def _only_needed(rows: RowsNotice, needs: frozenset[str]) -> RowsNotice:
    if needs.issuperset(rows.lengths):
        return rows
    lengths = {name: length for name, length in rows.lengths.items() if name in needs}
    return msgspec.structs.replace(rows, lengths=lengths)
