"""A store's whole content in bounded chunks, and a store made of them: how a standby comes about.

Pure. A store that was made of all chunks of another answers every later message as the other does.
Chunks hold raw bytes and metadata; where bytes lie in the arena is each store's own affair.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from rljob_runtime.dock.columns import known_format
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import names_of, pack_names
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.placed_columns import GROUPS
from rljob_runtime.dock.warehouse.slabs import Run, slab_bytes
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.encoding import packed_columns
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import (
    BatchItem,
    Chunk,
    GroupItems,
    NewColumn,
    RowItems,
    SlabItem,
    numbers_of,
    packed,
)

CHUNK_BYTES = 4 << 20
ROWS = 5_000
"""Whose metadata are in one chunk; groups likewise."""
SLABS = 1_000


class StoreCopy:
    """A store as it is now; its bytes are pinned until `release`.

    Later changes of the store are not in the chunks, however late these are taken.
    """

    def __init__(self, store: WarehouseStore) -> None:
        self._slabs = store.slabs
        records = store.batches.values()
        self._batches = [_batch_item(record) for record in records]
        self._groups = [items for record in records for items in _group_items(record)]
        self._rows = [items for record in records for items in _row_items(record)]
        self._held = [(record.name, *held) for record in records for held in record.columns.held()]
        self._slabs.pin(run for *_, run in self._held)

    def chunks(
        self, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[Chunk, Sequence[memoryview]]]:
        """Batches, their groups, their rows, then columns: views of the store's memory.

        chunk_bytes: of columns; one row may be larger.
        """
        yield Chunk(batches=self._batches), ()
        for groups in self._groups:
            yield Chunk(groups=[groups]), ()
        for rows in self._rows:
            yield Chunk(rows=[rows]), ()
        part: list[tuple[SlabItem, list[memoryview]]] = []
        size = 0
        for batch, source, places, whole in self._held:
            for run, num_bytes in _cut(whole, chunk_bytes):
                if part and (size + num_bytes > chunk_bytes or len(part) == SLABS):
                    yield _chunk(part)
                    part, size = [], 0
                own = places[run.first - whole.first : run.last - whole.first]
                part.append(self._slab_item(batch, source, own, run))
                size += num_bytes
        if part:
            yield _chunk(part)

    def release(self) -> bool:
        """Let the bytes go; True when bytes of rows that are gone became free."""
        return self._slabs.unpin(run for *_, run in self._held)

    def _slab_item(
        self, batch: str, source: str, places: Array, run: Run
    ) -> tuple[SlabItem, list[memoryview]]:
        columns = run.slab.columns
        item = SlabItem(
            batch=batch,
            source=source,
            places=packed(places),
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
    """Take a chunk of another store, in their order. Raises MalformedFrame, NoRoom."""
    try:
        for batch in chunk.batches:
            store.batches[batch.name] = _record(batch)
        for groups in chunk.groups:
            _add_groups(store, groups)
        for rows in chunk.rows:
            _add_rows(store, rows)
        place = 0
        for slab in chunk.slabs:
            place = _add_slab(store, slab, payload, place)
        if place != len(payload):
            raise ValueError(f"columns end at byte {place} of {len(payload)}")
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise MalformedFrame(f"chunk of a store: {type(error).__name__} {error}") from None


def clear(store: WarehouseStore) -> None:
    """Forget everything that is in the store; bytes under a pin go with their pin."""
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
    record.know_leases(item.leases)
    return record


def _group_items(record: BatchRecord) -> Iterator[GroupItems]:
    groups = record.groups
    charges = np.where(groups["left"] > 0, groups["charge"], 0)
    for first in range(0, groups.length, ROWS):
        own = slice(first, min(first + ROWS, groups.length))
        yield GroupItems(
            batch=record.name,
            names=record.group_names.packed(np.arange(own.start, own.stop)),
            sizes=packed(groups["size"][own]),
            indexes=packed(groups["index"][own]),
            charges=packed(charges[own]),
        )


def _row_items(record: BatchRecord) -> Iterator[RowItems]:
    rows, names, acks = record.rows, list(record.numbers), record.acks()
    for first in range(0, rows.length, ROWS):
        own = slice(first, first + ROWS)
        yield RowItems(
            batch=record.name,
            names=pack_names(names[own]),
            groups=packed(rows["group"][own]),
            gone=packed(rows["gone"][own]),
            versions=packed(rows["version"][own]),
            charges=packed(rows["charge"][own]),
            num_bytes=packed(rows["num_bytes"][own]),
            acks={state: packed(leases[own]) for state, leases in acks.items()},
        )


def _cut(run: Run, chunk_bytes: int) -> Iterator[tuple[Run, int]]:
    """Parts of it that are not larger than that, unless a row is, and their bytes."""
    columns = run.slab.columns.values()
    first = size = 0
    for place in range(run.first, run.last):
        own = sum([column.starts[place + 1] - column.starts[place] for column in columns])
        if place > first + run.first and size + own > chunk_bytes:
            yield Run(run.slab, run.first + first, place), size
            first, size = place - run.first, 0
        size += own
    yield Run(run.slab, run.first + first, run.last), size


def _chunk(
    part: Sequence[tuple[SlabItem, list[memoryview]]],
) -> tuple[Chunk, Sequence[memoryview]]:
    buffers = [*chain.from_iterable(own for _, own in part)]
    return Chunk(slabs=[item for item, _ in part]), buffers


def _add_groups(store: WarehouseStore, items: GroupItems) -> None:
    record = store.batches[items.batch]
    number = len(names_of(items.names))
    charges = _numbers(items.charges, number)
    record.add_groups(
        items.names,
        sizes=_numbers(items.sizes, number),
        indexes=_numbers(items.indexes, number),
        charges=charges,
        slab=None,
    )
    store.charge(sum(charges.tolist()))


def _add_rows(store: WarehouseStore, items: RowItems) -> None:
    record, uids = store.batches[items.batch], names_of(items.names)
    number = len(uids)
    if len(set(uids)) < number or not record.numbers.keys().isdisjoint(uids):
        raise ValueError("a row is there twice")
    groups, gone = _numbers(items.groups, number), _numbers(items.gone, number) != 0
    if number and int(groups.max()) >= record.groups.length:
        raise ValueError("rows of groups that are not there")
    charges = _numbers(items.charges, number)
    numbers = record.add_rows(
        uids,
        groups=groups,
        versions=_numbers(items.versions, number, least=None),
        charges=charges,
        num_bytes=_numbers(items.num_bytes, number),
        slab=None,
    )
    acks = {state: _numbers(leases, number) for state, leases in items.acks.items()}
    if any(state not in record.states for state in acks):
        raise ValueError("rows are acknowledged by states that they do not pass")
    record.restore(numbers, gone=gone, acks=acks)
    if record.live:
        store.live[record.name] = record
    store.charge(sum(charges[~gone].tolist()))


def _add_slab(store: WarehouseStore, item: SlabItem, payload: memoryview, place: int) -> int:
    """Columns whose bytes begin there; where they end."""
    record = store.batches[item.batch]
    size = sum(
        int(numbers_of(head.lengths).sum()) * known_format(head.dtype, head.tail).value_bytes
        for head in item.columns
    )
    columns = packed_columns(item.columns, payload[place : place + size], alignment_bytes=1)
    places = _numbers(item.places, len(item.places) // 8)
    number = len(places)
    there = record.groups.length if item.source == GROUPS else record.rows.length
    if not number or {len(column.lengths) for column in columns.values()} != {number}:
        raise ValueError("columns of other rows than are named")
    if int(places.max()) >= there or len(set(places.tolist())) < number:
        raise ValueError("columns of rows that are not there")
    store.slabs.require(slab_bytes(columns))
    record.columns.place(item.source, places, store.slabs.store(columns))
    return place + size


def _numbers(told: bytes, number: int, *, least: int | None = 0) -> Array:
    """So many, none of them smaller. Raises ValueError."""
    values = numbers_of(told)
    if len(values) != number or (least is not None and number and int(values.min()) < least):
        raise ValueError(f"{len(values)} numbers for {number}, or one below {least}")
    return values
