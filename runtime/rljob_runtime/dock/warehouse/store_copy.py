"""A store's whole content in bounded chunks, and a store made of them: how a standby comes about.

Pure. A store that was made of all chunks of another answers every later message as the other does.
Chunks hold raw bytes and metadata; where bytes lie in the arena is each store's own affair.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from rljob_runtime.dock.columns import DTYPES, Format, Packed, known_format
from rljob_runtime.dock.warehouse.batch_record import BatchRecord, GroupCells, RowHead, StoredRow
from rljob_runtime.dock.warehouse.cells import Cell, Cells, runs_of
from rljob_runtime.dock.warehouse.put_rules import row_head
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.frames import Fields, MalformedFrame

CHUNK_BYTES = 4 << 20
BYTES = known_format("uint8", ())
FREED_ROWS = 5_000
"""Acknowledgements of freed rows in one chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a store. buffers: views of its memory, of use while its cells are as they were."""

    header: dict[str, Any]
    buffers: Sequence[memoryview] = ()


@dataclass(frozen=True, slots=True)
class _Item:
    """Something with cells: a row, or a group's shared columns. wire: its metadata."""

    wire: list[Any]
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
        self._batches = [_batch_wire(record) for record in store.batches.values()]
        self._freed = [
            [record.name, uid, dict(acks)]
            for record in store.batches.values()
            for uid, acks in record.freed.items()
        ]
        self._items = [item for record in store.batches.values() for item in _items(store, record)]
        self._memory.pin(self._all_cells())

    def chunks(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Batches, then freed rows, then rows. chunk_bytes: of columns; one row may be larger."""
        yield Chunk(header={"batches": self._batches})
        left = iter(self._freed)
        while freed := list(islice(left, FREED_ROWS)):
            yield Chunk(header={"freed": freed})
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

    def _chunk(self, items: Sequence[_Item]) -> Chunk:
        """Column after column, so that rows that lie together stay together."""
        places: dict[str, list[int]] = {}
        for i, item in enumerate(items):
            for name in item.cells:
                places.setdefault(name, []).append(i)
        columns, buffers = [], []
        for name, where in places.items():
            cells = [items[i].cells[name] for i in where]
            columns.append(
                {
                    "name": name,
                    "items": _packed(where),
                    "lengths": _packed(cell.length for cell in cells),
                    "sizes": _packed(_size(cell) for cell in cells),
                }
            )
            buffers += [self._memory.memory.view[start:end] for start, end in runs_of(cells)]
        return Chunk(
            header={"items": [item.wire for item in items], "columns": columns}, buffers=buffers
        )

    def _all_cells(self) -> list[Cell]:
        return [cell for item in self._items for cell in item.cells.values()]


def add_chunk(store: WarehouseStore, fields: Fields, payload: memoryview) -> None:
    """Take a chunk of another store, in their order. Raises MalformedFrame, NoRoom."""
    try:
        for wire in fields.items("batches") if fields.has("batches") else ():
            record = _record(wire)
            store.batches[record.name] = record
        for batch, uid, acks in fields.items("freed") if fields.has("freed") else ():
            store.batches[batch].remember(uid, _texts_by_text(acks))
        if fields.has("items"):
            _add_items(store, fields, payload)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise MalformedFrame(f"chunk of a store: {type(error).__name__} {error}") from None


def clear(store: WarehouseStore) -> None:
    """Forget everything that is in the store; bytes under a pin go with their pin."""
    for record in list(store.batches.values()):
        store.drop_batch(record.name)
    store.batches.clear()
    store.take_notices()


def _batch_wire(record: BatchRecord) -> list[Any]:
    formats = {name: [form.dtype, list(form.tail)] for name, form in record.formats.items()}
    counts = [record.known, record.dropped, dict(record.acked)]
    names = [list(record.states), sorted(record.group_names)]
    return [record.name, record.total, *counts, *names, formats]


def _record(wire: Any) -> BatchRecord:
    name, total, known, dropped, acked, states, group_names, formats = wire
    return BatchRecord(
        name=str(name),
        total=int(total),
        states=tuple(states),
        known=int(known),
        dropped=bool(dropped),
        acked={str(state): int(count) for state, count in acked.items()},
        formats={name: _format(*form) for name, form in formats.items()},
        group_names=frozenset(group_names),
    )


def _format(dtype: str, tail: Sequence[int]) -> Format:
    if dtype not in DTYPES:
        raise ValueError(f"type {dtype!r} is unknown")
    return known_format(dtype, tuple(int(extent) for extent in tail))


def _items(store: WarehouseStore, record: BatchRecord) -> Iterator[_Item]:
    """A batch's rows in order, each group before its first row."""
    met: set[str] = set()
    for uid in record.live:
        row = store.rows[uid]
        head = row.head
        if head.group not in met:
            met.add(head.group)
            group = record.groups[head.group]
            yield _Item([record.name, head.group, group.charge], dict(group.cells))
        numbers = [row.charge, row.num_bytes, row.version]
        yield _Item([record.name, _head_wire(head), *numbers, dict(row.acks)], dict(row.cells))


def _head_wire(head: RowHead) -> list[Any]:
    """As a put message carries it."""
    place = [head.uid, head.group, head.group_index, head.group_size, head.sample]
    return [*place, head.version, head.reserve_bytes]


def _add_items(store: WarehouseStore, fields: Fields, payload: memoryview) -> None:
    items = fields.items("items")
    cells: list[Cells] = [{} for _ in items]
    place = 0
    for column in fields.maps("columns"):
        sizes, lengths = _unpacked(column, "sizes"), _unpacked(column, "lengths")
        end = place + sum(sizes)
        if end > len(payload) or min([*sizes, *lengths], default=0) < 0:
            raise ValueError(f"{column.text('name')} ends at byte {end} of {len(payload)}")
        store.cells.require(end - place)
        data = Packed(BYTES, sizes, payload[place:end])
        name, place = column.text("name"), end
        stored = store.cells.store({name: data}, range(len(sizes)))
        for i, length, cell in zip(_unpacked(column, "items"), lengths, stored, strict=True):
            cell[name].length = length
            cells[i][name] = cell[name]
    if place != len(payload):
        raise ValueError(f"columns end at byte {place} of {len(payload)}")
    for wire, own in zip(items, cells, strict=True):
        _add_item(store, wire, own)
    store.peak_bytes = max(store.peak_bytes, store.charged_bytes)


def _add_item(store: WarehouseStore, wire: Any, cells: Cells) -> None:
    record = store.batches[wire[0]]
    if len(wire) == 3:
        _, group, charge = wire
        record.groups[group] = GroupCells(cells, int(charge))
        store.charged_bytes += int(charge)
        return
    _, head_wire, charge, num_bytes, version, acks = wire
    head = row_head(head_wire)
    if head.uid in store.rows:
        raise ValueError(f"row {head.uid} is there twice")
    row = StoredRow(
        head=head, batch=record.name, cells=cells, charge=int(charge), num_bytes=int(num_bytes)
    )
    row.version, row.acks = int(version), _texts_by_text(acks)
    record.groups[head.group].live += 1
    store.rows[head.uid] = row
    record.live[head.uid] = None
    store.charged_bytes += row.charge


def _texts_by_text(wire: dict[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in wire.items()}


def _size(cell: Cell) -> int:
    return sum(end - start for start, end in cell.spans)


def _packed(numbers: Iterable[int]) -> bytes:
    return np.fromiter(numbers, dtype="<i8").tobytes()


def _unpacked(fields: Fields, name: str) -> list[int]:
    numbers: list[int] = np.frombuffer(fields.binary(name), dtype="<i8").tolist()
    return numbers
