"""Rows as a test names them, told to a controller as a warehouse tells them: by number, in arrays."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.wire.messages import AckNotice, ColumnNotice, RowsNotice, pack_numbers


class Row(NamedTuple):
    """One row's metadata."""

    uid: str
    batch: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    lengths: dict[str, int]


class Numbering:
    """A warehouse's numbers of the rows of each batch: a group's follow each other."""

    def __init__(self) -> None:
        self._firsts: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def rows(self, told: Iterable[Row]) -> list[RowsNotice]:
        """A notice a batch."""
        by_batch: dict[str, list[Row]] = {}
        for row in told:
            by_batch.setdefault(row.batch, []).append(row)
        return [self._notice(batch, own) for batch, own in by_batch.items()]

    def column(
        self, batch: str, column: str, uids: Sequence[str], length: int, *, version: int
    ) -> ColumnNotice:
        """These rows have a column of that length."""
        return ColumnNotice(
            batch=batch,
            column=column,
            numbers=self._packed(uids),
            lengths=pack([length] * len(uids)),
            versions=pack([version] * len(uids)),
        )

    def ack(self, batch: str, uids: Sequence[str]) -> AckNotice:
        """The state acknowledged these rows."""
        return AckNotice(batch=batch, numbers=self._packed(uids))

    def _packed(self, uids: Sequence[str]) -> bytes:
        return pack([self._numbers[uid] for uid in uids])

    def _notice(self, batch: str, rows: list[Row]) -> RowsNotice:
        for row in rows:
            if row.group not in self._firsts:
                self._firsts[row.group] = self._next.get(batch, 0)
                self._next[batch] = self._firsts[row.group] + row.group_size
            self._numbers[row.uid] = self._firsts[row.group] + row.sample
        rows = sorted(rows, key=lambda row: self._numbers[row.uid])
        groups = {row.group: row for row in rows}
        columns = {name for row in rows for name in row.lengths}
        return RowsNotice(
            batch=batch,
            numbers=self._packed([row.uid for row in rows]),
            names=pack_names([row.uid for row in rows]),
            versions=pack([row.version for row in rows]),
            lengths={name: pack([row.lengths.get(name, -1) for row in rows]) for name in columns},
            firsts=pack([self._firsts[group] for group in groups]),
            sizes=pack([row.group_size for row in groups.values()]),
            indexes=pack([row.group_index for row in groups.values()]),
            groups=pack_names([*groups]),
        )


def pack(numbers: Sequence[int]) -> bytes:
    """As messages carry them."""
    return pack_numbers(np.array(numbers, dtype=np.int64))
