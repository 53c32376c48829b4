"""Notices: the metadata that warehouses broadcast, filtered for each controller, and snapshots.

A warehouse's store emits them; `encode` cuts them down to what one state needs; the controller's
ledger applies what `decode` gives. Both ends of the broadcast are in this file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rljob_runtime.dock.warehouse.batch_record import BatchRecord, StoredRow
from rljob_runtime.dock.wire.frames import Fields, MalformedFrame


class Notice(NamedTuple):
    """One event in a warehouse. what: batch, row, column, ack or drop; data: its wire form.

    state: who acknowledged. column: which came. states: those that the row passes.
    """

    what: str
    data: list[Any]
    state: str | None = None
    column: str | None = None
    states: tuple[str, ...] = ()

    @classmethod
    def of_batch(cls, batch: str, total: int, states: tuple[str, ...]) -> "Notice":
        """A batch is new here."""
        return cls("batch", [batch, total, list(states)])

    @classmethod
    def of_row(cls, row: StoredRow, record: BatchRecord) -> "Notice":
        """A row is new; its lengths are cut to a state's needs when encoded."""
        return cls("row", row_data(row, record), states=record.states)

    @classmethod
    def of_column(cls, row: StoredRow, column: str) -> "Notice":
        """A row got a column."""
        data = [row.head.uid, column, row.cells[column].length, row.version]
        return cls("column", data, column=column)

    @classmethod
    def of_ack(cls, row: StoredRow, state: str) -> "Notice":
        """A state acknowledged a row."""
        return cls("ack", [row.batch, row.head.uid], state)

    @classmethod
    def of_drop(cls, batch: str) -> "Notice":
        """A batch was dropped."""
        return cls("drop", [batch])


def row_data(row: StoredRow, record: BatchRecord) -> list[Any]:
    """Wire form of a row's metadata, with the lengths of all its columns now."""
    uid, group, group_index, group_size, sample, *_ = row.head
    lengths = {name: cell.length for name, cell in record.groups[group].cells.items()}
    for name, cell in row.cells.items():
        lengths[name] = cell.length
    return [uid, row.batch, group, group_index, group_size, sample, row.version, lengths]


def group_of(data: list[Any]) -> tuple[str, str]:
    """Batch and group of a row's wire form."""
    return data[1], data[2]


def encode_notices(
    notices: Iterable[Notice], *, state: str, needs: frozenset[str]
) -> dict[str, Any]:
    """The message for one state's controller; empty lists where nothing concerns it."""
    message: dict[str, list[Any]] = {key: [] for key in ("batch", "row", "column", "ack", "drop")}
    for notice in notices:
        if notice.what == "row":
            if state in notice.states:
                message["row"].append(_cut(notice.data, needs))
        elif notice.what == "column":
            if notice.column in needs:
                message["column"].append(notice.data)
        elif notice.what != "ack" or notice.state == state:
            message[notice.what].append(notice.data)
    return message


def encode_snapshot(
    records: Iterable[BatchRecord],
    stored: Mapping[str, StoredRow],
    *,
    state: str,
    needs: frozenset[str],
) -> dict[str, Any]:
    """All that a controller must know of a warehouse: its batches and its unacknowledged rows. stored: by
    uid."""
    batches, rows = [], []
    for record in records:
        counts = [record.known if state in record.states else 0, record.acked.get(state, 0)]
        entry = [record.name, record.total, list(record.states), *counts, record.dropped]
        batches.append(entry)
        for uid in record.live if state in record.states else ():
            row = stored[uid]
            if state not in row.acks:
                rows.append(_cut(row_data(row, record), needs))
    return {"batches": batches, "rows": rows}


def _cut(data: list[Any], needs: frozenset[str]) -> list[Any]:
    return [*data[:-1], {name: length for name, length in data[-1].items() if name in needs}]


class RowNotice(NamedTuple):
    """A row's metadata as a controller receives it."""

    uid: str
    batch: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    lengths: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNotice:
    """A batch as a snapshot tells it: rows known to the warehouse and acknowledged by the state."""

    name: str
    total: int
    states: tuple[str, ...]
    known: int = 0
    acked: int = 0
    dropped: bool = False


class ColumnNotice(NamedTuple):
    """A needed column arrived. version: the row's weight version now."""

    uid: str
    column: str
    length: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast:
    """What one notice message says, to be applied in this order."""

    batches: list[BatchNotice] = field(default_factory=list)
    rows: list[RowNotice] = field(default_factory=list)
    columns: list[ColumnNotice] = field(default_factory=list)
    acks: list[tuple[str, str]] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)


def decode_notices(fields: Fields) -> Broadcast:
    """The inverse of encode_notices. Raises MalformedFrame."""
    try:
        return Broadcast(
            batches=[
                BatchNotice(name=name, total=total, states=tuple(states))
                for name, total, states in fields.items("batch")
            ],
            rows=[RowNotice._make(data) for data in fields.items("row")],
            columns=[ColumnNotice._make(data) for data in fields.items("column")],
            acks=[(batch, uid) for batch, uid in fields.items("ack")],
            drops=[batch for (batch,) in fields.items("drop")],
        )
    except (ValueError, TypeError) as error:
        raise MalformedFrame(f"notices: {error}") from None


def decode_snapshot(fields: Fields) -> tuple[list[BatchNotice], list[RowNotice]]:
    """The inverse of encode_snapshot. Raises MalformedFrame."""
    try:
        batches = [
            BatchNotice(
                name=name, total=total, states=tuple(states), known=known, acked=acked, dropped=drop
            )
            for name, total, states, known, acked, drop in fields.items("batches")
        ]
        return batches, [RowNotice._make(data) for data in fields.items("rows")]
    except (ValueError, TypeError) as error:
        raise MalformedFrame(f"snapshot: {error}") from None
