"""Rules for a put of new rows, which the warehouse's store checks before it stores any. Pure."""

# n rows in G groups

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.columns import PackedColumn
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames, select_names, unpack_names
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import NewRows, unpack_numbers
from rljob_runtime.errors import DockLost, DockRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPut:
    """The rows of one put, and their columns: n rows each, or one a group where they are shared."""

    names: PackedNames
    uids: list[str]
    versions: Array
    reserves: Array
    groups: PackedNames
    sizes: Array
    indexes: Array
    columns: Mapping[str, PackedColumn]
    shared: Mapping[str, PackedColumn]

    def select(self, mask_G: Array) -> "ParsedPut":
        """Select some of the groups by a mask."""
        row_mask = np.repeat(mask_G, self.sizes)
        rows, groups = np.flatnonzero(row_mask).tolist(), np.flatnonzero(mask_G).tolist()
        return ParsedPut(
            names=select_names(self.names, row_mask),
            uids=[self.uids[i] for i in rows],
            versions=self.versions[row_mask],
            reserves=self.reserves[row_mask],
            groups=select_names(self.groups, mask_G),
            sizes=self.sizes[mask_G],
            indexes=self.indexes[mask_G],
            columns={name: column.take(rows) for name, column in self.columns.items()},
            shared={name: column.take(groups) for name, column in self.shared.items()},
        )


def read_put(
    rows: NewRows, columns: Mapping[str, PackedColumn], group_columns: Mapping[str, PackedColumn]
) -> ParsedPut:
    """Parse a message. Raises MalformedFrame where its arrays do not fit each other."""
    try:
        uids, groups = unpack_names(rows.names), unpack_names(rows.groups)
    except ValueError as error:
        raise MalformedFrame(f"names of new rows: {error}") from None
    put = ParsedPut(
        names=rows.names,
        uids=uids,
        versions=unpack_numbers(rows.versions),
        reserves=unpack_numbers(rows.reserves),
        groups=rows.groups,
        sizes=unpack_numbers(rows.sizes),
        indexes=unpack_numbers(rows.indexes),
        columns=columns,
        shared=group_columns,
    )
    row_arrays, group_arrays = (put.versions, put.reserves), (put.sizes, put.indexes)
    if not uids or any(len(values) != len(uids) for values in row_arrays):
        raise MalformedFrame(f"{len(uids)} new rows with {[*map(len, row_arrays)]} numbers")
    if any(len(values) != len(groups) for values in group_arrays):
        raise MalformedFrame(f"{len(groups)} new groups with {[*map(len, group_arrays)]} numbers")
    sizes = put.sizes.tolist()
    if min(sizes) < 1 or min(put.indexes.tolist()) < 0 or min(put.reserves.tolist()) < 0:
        raise MalformedFrame("a size below 1, or a negative number or reserve, of new rows")
    if sum(sizes) != len(uids):
        raise DockRefused(
            f"groups of {sum(sizes)} rows come with {len(uids)}; put all rows of a group at once"
        )
    if len(set(groups)) < len(groups):
        raise DockRefused("a group is there twice in one put; put its rows one behind the other")
    return put


def batch_for_put(
    known: BatchRecord | None,
    graph: StateGraph,
    batch: str,
    *,
    total: int,
    states: Sequence[str],
    columns: Sequence[str],
) -> BatchRecord:
    """Return the batch's record, a new one for a new batch. Raises DockRefused, DockLost."""
    if known is None:
        graph.check_new_rows(batch, states, columns)
        return BatchRecord(batch, total=total, states=states)
    if known.dropped:
        raise DockLost(f"batch {batch} was dropped; put its rows under another name")
    if (known.total, known.states) != (total, tuple(states)):
        raise DockRefused(
            f"batch {batch} was put with total={known.total} and states "
            f"{list(known.states)}, now with total={total} and states {list(states)}"
        )
    return known


def only_new(
    record: BatchRecord, live_batches: Mapping[str, BatchRecord], put: ParsedPut
) -> ParsedPut:
    """Return the rows of a put that are not known yet. Raises DockRefused where they do not fit the stored
    rows."""
    for expected, columns in ((len(put.uids), put.columns), (len(put.sizes), put.shared)):
        for name, column in columns.items():
            if len(column.lengths) != expected:
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows; {record.name} needs {expected}"
                )
    if len(set(put.uids)) != len(put.uids):
        raise DockRefused(f"two new rows of {record.name} have one uid")
    record.columns.check_formats(put.columns)
    record.columns.check_formats(put.shared)
    for other in live_batches.values():
        if other is not record and other.live and not other.numbers.keys().isdisjoint(put.uids):
            _refuse_strangers(other, put)
    if record.numbers.keys().isdisjoint(put.uids):
        return put
    return put.select(~_known_groups(record, put))


def _known_groups(record: BatchRecord, put: ParsedPut) -> Array:
    """Return a mask of the groups that were put before, [G]."""
    numbers = [record.numbers.get(uid) for uid in put.uids]
    ends = put.sizes.cumsum().tolist()
    known = np.zeros(len(ends), dtype=bool)
    for index, (name, size, end) in enumerate(
        zip(unpack_names(put.groups), put.sizes.tolist(), ends, strict=True)
    ):
        known_numbers = [number for number in numbers[end - size : end] if number is not None]
        if not known_numbers:
            continue
        known_group = record.group_name(known_numbers[0])
        if known_group != name:
            raise DockRefused(f"row {put.uids[end - size]} is in group {known_group} already")
        if len(known_numbers) != size or known_numbers[-1] - known_numbers[0] != size - 1:
            raise DockRefused(f"group {name} was put with other rows than these {size}")
        known[index] = True
    return known


def _refuse_strangers(other: BatchRecord, put: ParsedPut) -> None:
    """Raise DockRefused for rows that are live in another batch."""
    for uid in put.uids:
        number = other.numbers.get(uid)
        if number is not None and not other.rows["gone"][number]:
            raise DockRefused(f"row {uid} is in group {other.group_name(number)} already")
