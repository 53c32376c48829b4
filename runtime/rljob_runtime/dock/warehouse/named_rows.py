"""Rows that a message names: in which batches they are, and what has become of them. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.errors import DockLost

Records = Mapping[str, BatchRecord]


class Named(NamedTuple):
    """Rows of one batch among those of a message. places: of their names in it, ascending."""

    record: BatchRecord
    places: Array
    numbers: Array

    def only(self, which: Array) -> "Named":
        """Some of them."""
        return Named(self.record, self.places[which], self.numbers[which])


def named_rows(live: Records, known: Records, uids: Sequence[str]) -> list[Named]:
    """The rows by batch, in order of first appearance. live: batches that have rows; known: all. Raises
    DockLost for a row that was never here, or whose batch was dropped."""
    if not uids:
        return []
    first = _holder(live, known, uids[0])
    numbers = list(map(first.numbers.get, uids))
    if None not in numbers:
        return [Named(first, np.arange(len(uids)), np.array(numbers, dtype=np.int64))]
    places: dict[BatchRecord, list[int]] = {}
    for place, uid in enumerate(uids):
        places.setdefault(_holder(live, known, uid), []).append(place)
    return [
        Named(
            record,
            np.array(own, dtype=np.int64),
            np.array([record.numbers[uids[place]] for place in own], dtype=np.int64),
        )
        for record, own in places.items()
    ]


def live_rows(live: Records, known: Records, uids: Sequence[str]) -> list[Named]:
    """Likewise. Raises DockLost for rows that are gone too."""
    found = named_rows(live, known, uids)
    for record, places, numbers in found:
        gone = record.rows["gone"][numbers]
        if gone.any():
            raise _lost(uids[int(places[gone][0])])
    return found


def _holder(live: Records, known: Records, uid: str) -> BatchRecord:
    """The batch of a row: that where it lives, else one where it was."""
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
