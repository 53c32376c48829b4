"""Rows that a message names: their batches, and whether they are live. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.errors import DockLost

Records = Mapping[str, BatchRecord]


class NamedRows(NamedTuple):
    """The rows of one batch among those of a message. positions: of their names in it, ascending."""

    record: BatchRecord
    positions: Array
    numbers: Array

    def select(self, mask: Array) -> "NamedRows":
        """Select some of the rows by a mask."""
        return NamedRows(self.record, self.positions[mask], self.numbers[mask])


def named_rows(live: Records, known: Records, uids: Sequence[str]) -> list[NamedRows]:
    """Group the rows by batch, in order of first appearance.

    live: batches that have rows. known: all. Raises DockLost for a row that was never here, or whose batch
    was dropped.
    """
    if not uids:
        return []
    first = _holder(live, known, uids[0])
    numbers = list(map(first.numbers.get, uids))
    if None not in numbers:
        return [NamedRows(first, np.arange(len(uids)), np.array(numbers, dtype=np.int64))]
    positions: dict[BatchRecord, list[int]] = {}
    for position, uid in enumerate(uids):
        positions.setdefault(_holder(live, known, uid), []).append(position)
    return [
        NamedRows(
            record,
            np.array(batch_positions, dtype=np.int64),
            np.array(
                [record.numbers[uids[position]] for position in batch_positions], dtype=np.int64
            ),
        )
        for record, batch_positions in positions.items()
    ]


def live_rows(live: Records, known: Records, uids: Sequence[str]) -> list[NamedRows]:
    """Group the rows like `named_rows`. Raises DockLost for rows that are gone too."""
    named = named_rows(live, known, uids)
    for record, positions, numbers in named:
        gone = record.rows["gone"][numbers]
        if gone.any():
            raise _lost(uids[int(positions[gone][0])])
    return named


def _holder(live: Records, known: Records, uid: str) -> BatchRecord:
    """Return the batch of a row: the one where it is live, else one where it was."""
    for record in live.values():
        number = record.numbers.get(uid)
        if number is not None and not record.rows["gone"][number]:
            return record
    for record in known.values():
        if uid in record.numbers and not record.dropped:
            return record
    raise _lost(uid)


def _lost(uid: str) -> DockLost:
    return DockLost(
        f"row {uid} is not in this warehouse: every state has acknowledged it, its batch "
        "was dropped, or the warehouse restarted"
    )
