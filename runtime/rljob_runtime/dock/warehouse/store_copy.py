"""A store's full content in bounded chunks, and a store built from them: this is how a standby is seeded.

Pure. A store built from all chunks of another answers every later message like the original. Chunks contain
raw bytes and metadata; each store has its own location of bytes in the arena.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from rljob_runtime.dock.columns import known_format
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import pack_names, unpack_names
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.placed_columns import GROUPS
from rljob_runtime.dock.warehouse.slabs import SlabRun, slab_bytes
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.encoding import decode_packed_columns
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import (
    BatchItem,
    Chunk,
    GroupItems,
    NewColumn,
    RowItems,
    SlabItem,
    pack_numbers,
    unpack_numbers,
)

CHUNK_BYTES = 4 << 20
ROWS = 5_000
"""Number of rows whose metadata are in one chunk; groups likewise."""
SLABS = 1_000


class StoreCopy:
    """A snapshot of a store; its bytes are pinned until `release`.

    Later changes of the store are not in the chunks, even when these are read later.
    """

    def __init__(self, store: WarehouseStore) -> None:
        self._slabs = store.slabs
        records = store.batches.values()
        self._batches = [_batch_item(record) for record in records]
        self._groups = [items for record in records for items in _group_items(record)]
        self._rows = [items for record in records for items in _row_items(record)]
        self._live_runs = [
            (record.name, *live_run)
            for record in records
            for live_run in record.columns.live_runs()
        ]
        self._slabs.pin(run for *_, run in self._live_runs)

    def chunks(
        self, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[Chunk, Sequence[memoryview]]]:
        """Yield batches, their groups, their rows, then columns: views of the store's memory.

        chunk_bytes: of columns; one row may be larger.
        """
        yield Chunk(batches=self._batches), ()
        for groups in self._groups:
            yield Chunk(groups=[groups]), ()
        for rows in self._rows:
            yield Chunk(rows=[rows]), ()
        items: list[tuple[SlabItem, list[memoryview]]] = []
        size = 0
        for batch, source, members, live_run in self._live_runs:
            for run, num_bytes in _split_run(live_run, chunk_bytes):
                if items and (size + num_bytes > chunk_bytes or len(items) == SLABS):
                    yield _chunk(items)
                    items, size = [], 0
                run_members = members[run.first - live_run.first : run.last - live_run.first]
                items.append(self._slab_item(batch, source, run_members, run))
                size += num_bytes
        if items:
            yield _chunk(items)

    def release(self) -> bool:
        """Unpin the bytes; return True when bytes of rows that are gone became free."""
        return self._slabs.unpin(run for *_, run in self._live_runs)

    def _slab_item(
        self, batch: str, source: str, members: Array, run: SlabRun
    ) -> tuple[SlabItem, list[memoryview]]:
        columns = run.slab.columns
        item = SlabItem(
            batch=batch,
            source=source,
            places=pack_numbers(members),
            columns=[
                NewColumn(
                    name=name,
                    dtype=column.form.dtype,
                    tail=column.form.tail,
                    lengths=run.lengths(name).tobytes(),
                    sums=column.sums[run.first : run.last].tobytes(),
                )
                for name, column in columns.items()
            ],
        )
        view = self._slabs.memory.view
        return item, [view[start:end] for name in columns for start, end in run.spans(name)]


def add_chunk(store: WarehouseStore, chunk: Chunk, payload: memoryview) -> None:
    """Add a chunk of another store; chunks must be added in order. Raises MalformedFrame, NoRoom."""
    try:
        for batch in chunk.batches:
            store.batches[batch.name] = _record(batch)
        for groups in chunk.groups:
            _add_groups(store, groups)
        for rows in chunk.rows:
            _add_rows(store, rows)
        offset = 0
        for slab in chunk.slabs:
            offset = _add_slab(store, slab, payload, offset)
        if offset != len(payload):
            raise ValueError(f"columns end at byte {offset} of {len(payload)}")
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise MalformedFrame(f"chunk of a store: {type(error).__name__} {error}") from None


def clear(store: WarehouseStore) -> None:
    """Remove the content of the store; pinned bytes are freed with their pin."""
    for record in list(store.batches.values()):
        store.drop_batch(record.name)
    store.batches.clear()
    store.take_notices()


def _batch_item(record: BatchRecord) -> BatchItem:
    return BatchItem(
        name=record.name,
        total=record.total,
        dropped=record.dropped,
        states=record.states,
        shared=tuple(sorted(record.columns.shared)),
        formats={name: (form.dtype, form.tail) for name, form in record.columns.formats.items()},
        leases=record.leases(),
    )


def _record(item: BatchItem) -> BatchRecord:
    record = BatchRecord(item.name, total=item.total, states=item.states)
    record.dropped = item.dropped
    record.columns.shared = frozenset(item.shared)
    record.columns.formats = {name: known_format(*form) for name, form in item.formats.items()}
    record.set_leases(item.leases)
    return record


def _group_items(record: BatchRecord) -> Iterator[GroupItems]:
    groups = record.groups
    charges = np.where(groups["left"] > 0, groups["charge"], 0)
    for first in range(0, groups.length, ROWS):
        chunk = slice(first, min(first + ROWS, groups.length))
        yield GroupItems(
            batch=record.name,
            names=record.group_names.packed(np.arange(chunk.start, chunk.stop)),
            sizes=pack_numbers(groups["size"][chunk]),
            indexes=pack_numbers(groups["index"][chunk]),
            charges=pack_numbers(charges[chunk]),
        )


def _row_items(record: BatchRecord) -> Iterator[RowItems]:
    rows, names, acks = record.rows, list(record.numbers), record.acks()
    for first in range(0, rows.length, ROWS):
        chunk = slice(first, first + ROWS)
        yield RowItems(
            batch=record.name,
            names=pack_names(names[chunk]),
            groups=pack_numbers(rows["group"][chunk]),
            gone=pack_numbers(rows["gone"][chunk]),
            versions=pack_numbers(rows["version"][chunk]),
            charges=pack_numbers(rows["charge"][chunk]),
            num_bytes=pack_numbers(rows["num_bytes"][chunk]),
            acks={state: pack_numbers(leases[chunk]) for state, leases in acks.items()},
        )


def _split_run(run: SlabRun, chunk_bytes: int) -> Iterator[tuple[SlabRun, int]]:
    """Yield parts of a run that are not larger than `chunk_bytes`, unless one row is, with their bytes."""
    columns = run.slab.columns.values()
    first = size = 0
    for row in range(run.first, run.last):
        row_bytes = sum([column.starts[row + 1] - column.starts[row] for column in columns])
        if row > first + run.first and size + row_bytes > chunk_bytes:
            yield SlabRun(run.slab, run.first + first, row), size
            first, size = row - run.first, 0
        size += row_bytes
    yield SlabRun(run.slab, run.first + first, run.last), size


def _chunk(
    items: Sequence[tuple[SlabItem, list[memoryview]]],
) -> tuple[Chunk, Sequence[memoryview]]:
    buffers = [*chain.from_iterable(buffer_list for _, buffer_list in items)]
    return Chunk(slabs=[item for item, _ in items]), buffers


def _add_groups(store: WarehouseStore, items: GroupItems) -> None:
    record = store.batches[items.batch]
    num_groups = len(unpack_names(items.names))
    charges = _unpack(items.charges, num_groups)
    record.add_groups(
        items.names,
        sizes=_unpack(items.sizes, num_groups),
        indexes=_unpack(items.indexes, num_groups),
        charges=charges,
        slab=None,
    )
    store.charge(sum(charges.tolist()))


def _add_rows(store: WarehouseStore, items: RowItems) -> None:
    record, uids = store.batches[items.batch], unpack_names(items.names)
    num_rows = len(uids)
    if len(set(uids)) < num_rows or not record.numbers.keys().isdisjoint(uids):
        raise ValueError("a row is there twice")
    groups, gone = _unpack(items.groups, num_rows), _unpack(items.gone, num_rows) != 0
    if num_rows and int(groups.max()) >= record.groups.length:
        raise ValueError("rows of groups that are not there")
    charges = _unpack(items.charges, num_rows)
    numbers = record.add_rows(
        uids,
        groups=groups,
        versions=_unpack(items.versions, num_rows, minimum=None),
        charges=charges,
        num_bytes=_unpack(items.num_bytes, num_rows),
        slab=None,
    )
    acks = {state: _unpack(leases, num_rows) for state, leases in items.acks.items()}
    if any(state not in record.states for state in acks):
        raise ValueError("rows are acknowledged by states that they do not pass")
    record.restore(numbers, gone=gone, acks=acks)
    if record.live:
        store.live[record.name] = record
    store.charge(sum(charges[~gone].tolist()))


def _add_slab(store: WarehouseStore, item: SlabItem, payload: memoryview, offset: int) -> int:
    """Add the columns whose bytes begin at `offset`; return where they end."""
    record = store.batches[item.batch]
    size = sum(
        int(unpack_numbers(head.lengths).sum()) * known_format(head.dtype, head.tail).value_bytes
        for head in item.columns
    )
    columns = decode_packed_columns(
        item.columns, payload[offset : offset + size], alignment_bytes=1
    )
    members = _unpack(item.places, len(item.places) // 8)
    num_members = len(members)
    num_known = record.groups.length if item.source == GROUPS else record.rows.length
    if not num_members or {len(column.lengths) for column in columns.values()} != {num_members}:
        raise ValueError("columns of other rows than are named")
    if int(members.max()) >= num_known or len(set(members.tolist())) < num_members:
        raise ValueError("columns of rows that are not there")
    store.slabs.require(slab_bytes(columns))
    record.columns.assign_slab(item.source, members, store.slabs.store(columns))
    return offset + size


def _unpack(packed_values: bytes, count: int, *, minimum: int | None = 0) -> Array:
    """Unpack `count` numbers, none below the minimum. Raises ValueError."""
    values = unpack_numbers(packed_values)
    if len(values) != count or (minimum is not None and count and int(values.min()) < minimum):
        raise ValueError(f"{len(values)} numbers for {count}, or one below {minimum}")
    return values
