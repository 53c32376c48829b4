"""Rows as a test names them, put into a warehouse's store, and what lies there of each."""

from collections.abc import Sequence
from typing import NamedTuple

from numbered_rows import pack

from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.warehouse.located import ColumnLocation
from rljob_runtime.dock.warehouse.slabs import SlabRun
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.messages import NewRows


class Head(NamedTuple):
    """A new row's metadata."""

    uid: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    reserve_bytes: int


def new_rows(heads: Sequence[Head]) -> NewRows:
    """As a message names them: by group, in the order in which they are given."""
    groups: dict[str, Head] = {}
    for head in heads:
        groups.setdefault(head.group, head)
    return NewRows(
        names=pack_names([head.uid for head in heads]),
        versions=pack([head.version for head in heads]),
        reserves=pack([head.reserve_bytes for head in heads]),
        groups=pack_names([*groups]),
        sizes=pack([head.group_size for head in groups.values()]),
        indexes=pack([head.group_index for head in groups.values()]),
    )


def live_uids(store: WarehouseStore) -> list[str]:
    """Names of all rows that are not gone."""
    return [uid for record in store.batches.values() for uid in record.uids(record.live_rows())]


def bytes_of(store: WarehouseStore, found: ColumnLocation) -> list[bytes]:
    """A column's bytes, row by row."""
    return [b"".join(parts_of(store, run, found.name)) for run in single(found.runs)]


def parts_of(store: WarehouseStore, run: SlabRun, column: str) -> list[memoryview]:
    """The bytes of a column of these rows, as they lie."""
    return [store.slabs.memory.view[start:end] for start, end in run.spans(column)]


def single(runs: Sequence[SlabRun]) -> list[SlabRun]:
    """Each row by itself."""
    return [SlabRun(run.slab, i, i + 1) for run in runs for i in range(run.first, run.last)]
