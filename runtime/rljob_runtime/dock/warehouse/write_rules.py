"""Rules for a write: which rows take effect in the warehouse's store, and which were acknowledged before.
Pure."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rljob_runtime.dock.columns import PackedColumn
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.named_rows import NamedRows
from rljob_runtime.errors import DockRefused


def sort_out(
    named: Iterable[NamedRows], uids: Sequence[str], *, state: str, lease: str
) -> tuple[list[NamedRows], list[int], list[int]]:
    """Return rows that are new to the state, positions of duplicates, and those of duplicates by another
    lease.

    Raises DockRefused for a row that does not pass the state.
    """
    fresh: list[NamedRows] = []
    duplicates: list[Array] = []
    foreign: list[Array] = []
    for rows in named:
        record, positions, numbers = rows
        if state not in record.states:
            live = ~record.rows["gone"][numbers]
            if live.any():
                uid = uids[int(positions[live][0])]
                raise DockRefused(f"row {uid} does not pass state {state}")
        known = record.is_acknowledged(state, numbers) | record.rows["gone"][numbers]
        if not known.any():
            fresh.append(rows)
            continue
        if not known.all():
            fresh.append(rows.select(~known))
        duplicates.append(positions[known])
        foreign.append(positions[known & ~record.is_acknowledged_by(state, lease, numbers)])
    return fresh, _sorted_positions(duplicates), _sorted_positions(foreign)


def check_columns(record: BatchRecord, numbers: Array, columns: Mapping[str, PackedColumn]) -> None:
    """Raise DockRefused for columns that the rows have already, or whose type differs from other rows'."""
    record.columns.check_formats(columns)
    conflicts = (record.columns.column_names(numbers) | record.columns.shared) & columns.keys()
    for name in conflicts:
        (with_column,) = np.nonzero(record.columns.lengths(name, numbers) >= 0)
        if len(with_column):
            (uid,) = record.uids(numbers[with_column[:1]])
            raise DockRefused(f"row {uid} has column {name!r} already; write it under another name")


def _sorted_positions(positions: Sequence[Array]) -> list[int]:
    return sorted([position for array in positions for position in array.tolist()])
