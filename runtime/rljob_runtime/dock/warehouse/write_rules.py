"""Which rows of a write take effect in the warehouse's store, and which were acknowledged before."""

from collections.abc import Mapping, Sequence

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.warehouse.batch_record import BatchRecord, StoredRow
from rljob_runtime.errors import DockLost, DockRefused


def live_row(rows: Mapping[str, StoredRow], uid: str) -> StoredRow:
    """The row of that uid. Raises DockLost when it is not here."""
    row = rows.get(uid)
    if row is None:
        raise DockLost(
            f"row {uid} is not in this warehouse: every state has acknowledged it, its batch "
            "was dropped, or the warehouse restarted"
        )
    return row


def sort_out(
    rows: Mapping[str, StoredRow],
    batches: Mapping[str, BatchRecord],
    state: str,
    lease: str,
    uids: Sequence[str],
) -> tuple[list[int], list[str], list[str]]:
    """Indices of rows that are new to the state; duplicates; duplicates by another lease.

    Raises DockRefused for a row that does not pass the state, DockLost for one that was never here.
    """
    fresh: list[int] = []
    duplicates: list[str] = []
    foreign: list[str] = []
    passing: set[str] = set()
    for i, uid in enumerate(uids):
        row = rows.get(uid)
        acks = row.acks if row is not None else _freed_acks(rows, batches, uid)
        if row is not None and row.batch not in passing:
            if state not in batches[row.batch].states:
                raise DockRefused(f"row {uid} does not pass state {state}")
            passing.add(row.batch)
        if row is not None and state not in acks:
            fresh.append(i)
            continue
        duplicates.append(uid)
        if acks.get(state) != lease:
            foreign.append(uid)
    return fresh, duplicates, foreign


def check_columns(
    rows: Sequence[StoredRow],
    batches: Mapping[str, BatchRecord],
    columns: Mapping[str, Packed],
) -> None:
    """Refuse columns that the rows have already, or whose type differs from other rows'."""
    for batch in {row.batch for row in rows}:
        batches[batch].check_formats(columns)
    for row in rows:
        group_names = batches[row.batch].group_names
        for name in columns:
            if name in row.cells or name in group_names:
                raise DockRefused(
                    f"row {row.head.uid} has column {name!r} already; write it under another name"
                )


def _freed_acks(
    rows: Mapping[str, StoredRow], batches: Mapping[str, BatchRecord], uid: str
) -> dict[str, str]:
    for record in batches.values():
        if uid in record.freed and not record.dropped:
            return record.freed[uid]
    live_row(rows, uid)
    raise AssertionError(f"row {uid} is live but was not found")
