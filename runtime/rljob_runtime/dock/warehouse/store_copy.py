"""A store's whole content in bounded chunks, and a store made of them: how a standby comes about.

Pure. A store that was made of all chunks of another answers every later message as the other does.
Chunks hold raw bytes and metadata; where bytes lie in the arena is each store's own affair.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from rljob_runtime.dock.columns import Packed, known_format
from rljob_runtime.dock.warehouse.batch_record import BatchRecord, GroupCells, StoredRow
from rljob_runtime.dock.warehouse.cells import Cell, Cells, runs_of
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import BatchItem, Chunk, GroupItem, ItemColumn, RowItem

CHUNK_BYTES = 4 << 20
BYTES = known_format("uint8", ())
FREED_ROWS = 5_000
"""Acknowledgements of freed rows in one chunk."""


@dataclass(frozen=True, slots=True)
class _Item:
    """Something with cells: a row, or a group's shared columns."""

    known: GroupItem | RowItem
    cells: Cells

    @property
    def num_bytes(self) -> int:
        return sum(_size(cell) for cell in self.cells.values())


class StoreCopy:
    """A store as it is now; its bytes are pinned until `release`.

    Later changes of the store are not in the chunks, however late these are taken.
    """

    def __init__(self, store: WarehouseStore) -> None:
        self._memory = store.cells
        self._batches = [_batch_item(record) for record in store.batches.values()]
        self._freed = [
            (record.name, uid, dict(acks))
            for record in store.batches.values()
            for uid, acks in record.freed.items()
        ]
        self._items = [item for record in store.batches.values() for item in _items(store, record)]
        self._memory.pin(self._all_cells())

    def chunks(
        self, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[Chunk, Sequence[memoryview]]]:
        """Batches, then freed rows, then rows, with their columns: views of the store's memory.

        chunk_bytes: of columns; one row may be larger.
        """
        yield Chunk(batches=self._batches), ()
        left = iter(self._freed)
        while freed := list(islice(left, FREED_ROWS)):
            yield Chunk(freed=freed), ()
        part: list[_Item] = []
        size = 0
        for item in self._items:
            if part and size + item.num_bytes > chunk_bytes:
                yield self._chunk(part)
                part, size = [], 0
            part.append(item)
            size += item.num_bytes
        if part:
            yield self._chunk(part)

    def release(self) -> bool:
        """Let the bytes go; True when bytes of rows that are gone became free."""
        return self._memory.unpin(self._all_cells())

    def _chunk(self, part: Sequence[_Item]) -> tuple[Chunk, Sequence[memoryview]]:
        """Groups, then rows; column after column, so that rows that lie together stay together."""
        items = sorted(part, key=lambda item: isinstance(item.known, RowItem))
        places: dict[str, list[int]] = {}
        for i, item in enumerate(items):
            for name in item.cells:
                places.setdefault(name, []).append(i)
        columns, buffers = [], []
        for name, where in places.items():
            cells = [items[i].cells[name] for i in where]
            columns.append(
                ItemColumn(
                    name=name,
                    items=_packed(where),
                    lengths=_packed(cell.length for cell in cells),
                    sizes=_packed(_size(cell) for cell in cells),
                    totals=_packed(cell.total for cell in cells),
                )
            )
            buffers += [self._memory.memory.view[start:end] for start, end in runs_of(cells)]
        groups = [item.known for item in items if isinstance(item.known, GroupItem)]
        rows = [item.known for item in items if isinstance(item.known, RowItem)]
        return Chunk(groups=groups, rows=rows, columns=columns), buffers

    def _all_cells(self) -> list[Cell]:
        return [cell for item in self._items for cell in item.cells.values()]


def add_chunk(store: WarehouseStore, chunk: Chunk, payload: memoryview) -> None:
    """Take a chunk of another store, in their order. Raises MalformedFrame, NoRoom."""
    try:
        for item in chunk.batches:
            store.batches[item.name] = _record(item)
        for batch, uid, acks in chunk.freed:
            store.batches[batch].remember(uid, acks)
        _add_items(store, chunk, payload)
    except (KeyError, ValueError, IndexError) as error:
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
        known=record.known,
        dropped=record.dropped,
        acked=dict(record.acked),
        states=record.states,
        group_names=sorted(record.group_names),
        formats={name: (form.dtype, form.tail) for name, form in record.formats.items()},
    )


def _record(item: BatchItem) -> BatchRecord:
    return BatchRecord(
        name=item.name,
        total=item.total,
        states=item.states,
        known=item.known,
        dropped=item.dropped,
        acked=item.acked,
        formats={name: known_format(*form) for name, form in item.formats.items()},
        group_names=frozenset(item.group_names),
    )


def _items(store: WarehouseStore, record: BatchRecord) -> Iterator[_Item]:
    """A batch's rows in order, each group before its first row."""
    met: set[str] = set()
    for uid in record.live:
        row = store.rows[uid]
        head = row.head
        if head.group not in met:
            met.add(head.group)
            group = record.groups[head.group]
            yield _Item(GroupItem(record.name, head.group, group.charge), dict(group.cells))
        numbers = (row.number, row.charge, row.num_bytes, row.version)
        yield _Item(RowItem(record.name, head, *numbers, dict(row.acks)), dict(row.cells))


def _add_items(store: WarehouseStore, chunk: Chunk, payload: memoryview) -> None:
    cells: list[Cells] = [{} for _ in chain(chunk.groups, chunk.rows)]
    place = 0
    for column in chunk.columns:
        name, sizes, lengths = column.name, _unpacked(column.sizes), _unpacked(column.lengths)
        end = place + sum(sizes)
        if end > len(payload) or min([*sizes, *lengths], default=0) < 0:
            raise ValueError(f"{name} ends at byte {end} of {len(payload)}")
        store.cells.require(end - place)
        data = Packed(BYTES, sizes, payload[place:end])
        place = end
        stored = store.cells.store({name: data}, range(len(sizes)))
        known = (_unpacked(column.items), lengths, _unpacked(column.totals))
        for i, length, total, cell in zip(*known, stored, strict=True):
            cell[name].length, cell[name].total = length, total
            cells[i][name] = cell[name]
    if place != len(payload):
        raise ValueError(f"columns end at byte {place} of {len(payload)}")
    left = iter(cells)
    for group, own in zip(chunk.groups, left, strict=False):
        store.batches[group.batch].groups[group.group] = GroupCells(own, group.charge)
        store.charged_bytes += group.charge
    for row, own in zip(chunk.rows, left, strict=True):
        _add_row(store, row, own)
    store.peak_bytes = max(store.peak_bytes, store.charged_bytes)


def _add_row(store: WarehouseStore, item: RowItem, cells: Cells) -> None:
    record, head = store.batches[item.batch], item.head
    if head.uid in store.rows:
        raise ValueError(f"row {head.uid} is there twice")
    row = StoredRow(
        head=head,
        batch=record.name,
        number=item.number,
        cells=cells,
        charge=item.charge,
        num_bytes=item.num_bytes,
        acks=item.acks,
    )
    row.version = item.version
    record.groups[head.group].live += 1
    store.rows[head.uid] = row
    record.live[head.uid] = None
    store.charged_bytes += row.charge


def _size(cell: Cell) -> int:
    return sum(end - start for start, end in cell.spans)


def _packed(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, dtype="<i8").tobytes()


def _unpacked(packed: bytes) -> list[int]:
    numbers: list[int] = np.frombuffer(packed, dtype="<i8").tolist()
    return numbers
