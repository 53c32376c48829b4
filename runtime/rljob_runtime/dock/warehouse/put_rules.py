"""What a put of new rows must satisfy, checked by the warehouse's store before it takes any. Pure."""

# n rows in G groups

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames, names_of, picked
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import NewRows, numbers_of
from rljob_runtime.errors import DockLost, DockRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """Rows of one put, and their columns: n rows each, or where they are shared one a group."""

    names: PackedNames
    uids: list[str]
    versions: Array
    reserves: Array
    groups: PackedNames
    sizes: Array
    indexes: Array
    columns: Mapping[str, Packed]
    shared: Mapping[str, Packed]

    def only(self, which_G: Array) -> "Put":
        """Some of the groups."""
        which = np.repeat(which_G, self.sizes)
        rows, groups = np.flatnonzero(which).tolist(), np.flatnonzero(which_G).tolist()
        return Put(
            names=picked(self.names, which),
            uids=[self.uids[i] for i in rows],
            versions=self.versions[which],
            reserves=self.reserves[which],
            groups=picked(self.groups, which_G),
            sizes=self.sizes[which_G],
            indexes=self.indexes[which_G],
            columns={name: column.take(rows) for name, column in self.columns.items()},
            shared={name: column.take(groups) for name, column in self.shared.items()},
        )


def read_put(
    rows: NewRows, columns: Mapping[str, Packed], group_columns: Mapping[str, Packed]
) -> Put:
    """What a message says. Raises MalformedFrame where its arrays do not fit each other."""
    try:
        uids, groups = names_of(rows.names), names_of(rows.groups)
    except ValueError as error:
        raise MalformedFrame(f"names of new rows: {error}") from None
    put = Put(
        names=rows.names,
        uids=uids,
        versions=numbers_of(rows.versions),
        reserves=numbers_of(rows.reserves),
        groups=rows.groups,
        sizes=numbers_of(rows.sizes),
        indexes=numbers_of(rows.indexes),
        columns=columns,
        shared=group_columns,
    )
    of_rows, of_groups = (put.versions, put.reserves), (put.sizes, put.indexes)
    if not uids or any(len(values) != len(uids) for values in of_rows):
        raise MalformedFrame(f"{len(uids)} new rows with {[*map(len, of_rows)]} numbers")
    if any(len(values) != len(groups) for values in of_groups):
        raise MalformedFrame(f"{len(groups)} new groups with {[*map(len, of_groups)]} numbers")
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
    """The batch's record, a new one for a new batch. Raises DockRefused, DockLost."""
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


def new_of(record: BatchRecord, others: Mapping[str, BatchRecord], put: Put) -> Put:
    """Those of its rows that are not known yet. Raises DockRefused where rows or columns do not fit what is
    there."""
    for expected, part in ((len(put.uids), put.columns), (len(put.sizes), put.shared)):
        for name, column in part.items():
            if len(column.lengths) != expected:
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows; {record.name} needs {expected}"
                )
    if len(set(put.uids)) != len(put.uids):
        raise DockRefused(f"two new rows of {record.name} have one uid")
    record.columns.check_formats(put.columns)
    record.columns.check_formats(put.shared)
    for other in others.values():
        if other is not record and other.live and not other.numbers.keys().isdisjoint(put.uids):
            _refuse_strangers(other, put)
    if record.numbers.keys().isdisjoint(put.uids):
        return put
    return put.only(~_known_groups(record, put))


def _known_groups(record: BatchRecord, put: Put) -> Array:
    """Which of the groups were put before, [G]."""
    found = [record.numbers.get(uid) for uid in put.uids]
    ends = put.sizes.cumsum().tolist()
    known = np.zeros(len(ends), dtype=bool)
    for place, (name, size, end) in enumerate(
        zip(names_of(put.groups), put.sizes.tolist(), ends, strict=True)
    ):
        own = [number for number in found[end - size : end] if number is not None]
        if not own:
            continue
        of = record.group_at(own[0])
        if of != name:
            raise DockRefused(f"row {put.uids[end - size]} is in group {of} already")
        if len(own) != size or own[-1] - own[0] != size - 1:
            raise DockRefused(f"group {name} was put with other rows than these {size}")
        known[place] = True
    return known


def _refuse_strangers(other: BatchRecord, put: Put) -> None:
    """Refuse rows that live in another batch."""
    for uid in put.uids:
        number = other.numbers.get(uid)
        if number is not None and not other.rows["gone"][number]:
            raise DockRefused(f"row {uid} is in group {other.group_at(number)} already")
