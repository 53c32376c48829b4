"""Which rows of a write take effect in the warehouse's store, and which were acknowledged before. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.named_rows import Named
from rljob_runtime.errors import DockRefused


def sort_out(
    named: Iterable[Named], uids: Sequence[str], *, state: str, lease: str
) -> tuple[list[Named], list[int], list[int]]:
    """Rows that are new to the state; places of duplicates; of duplicates by another lease.

    Raises DockRefused for a row that does not pass the state.
    """
    fresh: list[Named] = []
    duplicates: list[Array] = []
    foreign: list[Array] = []
    for own in named:
        record, places, numbers = own
        if state not in record.states:
            live = ~record.rows["gone"][numbers]
            if live.any():
                uid = uids[int(places[live][0])]
                raise DockRefused(f"row {uid} does not pass state {state}")
        known = record.acknowledged(state, numbers) | record.rows["gone"][numbers]
        if not known.any():
            fresh.append(own)
            continue
        if not known.all():
            fresh.append(own.only(~known))
        duplicates.append(places[known])
        foreign.append(places[known & ~record.acknowledged_by(state, lease, numbers)])
    return fresh, _sorted(duplicates), _sorted(foreign)


def check_columns(record: BatchRecord, numbers: Array, columns: Mapping[str, Packed]) -> None:
    """Refuse columns that the rows have already, or whose type differs from other rows'."""
    record.columns.check_formats(columns)
    taken = (record.columns.names_of(numbers) | record.columns.shared) & columns.keys()
    for name in taken:
        (has,) = np.nonzero(record.columns.lengths(name, numbers) >= 0)
        if len(has):
            (uid,) = record.uids(numbers[has[:1]])
            raise DockRefused(f"row {uid} has column {name!r} already; write it under another name")


def _sorted(places: Sequence[Array]) -> list[int]:
    return sorted([place for own in places for place in own.tolist()])
