"""Messages that change a warehouse's store: read once, carried out there and then at its standby.

Pure. The same changes in the same order make the same store, which is what the standby rests on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from rljob_runtime.dock.warehouse.put_rules import row_head
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.encoding import packed_columns
from rljob_runtime.dock.wire.frames import Fields, Kind, MalformedFrame

Change = Callable[[WarehouseStore], dict[str, Any]]
"""Carries a message out and returns the answer's header. Raises what the store raises, and has then
changed nothing."""


def change_of(kind: Kind, fields: Fields, payload: memoryview) -> Change:
    """What a PUT_ROWS, WRITE or DROP_BATCH does. Raises MalformedFrame."""
    reader = _READERS.get(kind)
    if reader is None:
        raise MalformedFrame(f"{kind.name} changes no store")
    return reader(fields, payload)


def _put_rows(fields: Fields, payload: memoryview) -> Change:
    entries, group_entries = fields.maps("columns"), fields.maps("group_columns")
    columns = packed_columns([*entries, *group_entries], payload)
    group_columns = {e.text("name"): columns.pop(e.text("name")) for e in group_entries}
    heads = [row_head(item) for item in fields.items("rows")]
    batch, total, states = fields.text("batch"), fields.integer("total"), fields.texts("states")
    if total < 0 or not heads:
        raise MalformedFrame(f"put of {len(heads)} rows with total {total}")

    def change(store: WarehouseStore) -> dict[str, Any]:
        new = store.put_rows(
            batch,
            total=total,
            states=states,
            heads=heads,
            columns=columns,
            group_columns=group_columns,
        )
        return {"stored": new}

    return change


def _write(fields: Fields, payload: memoryview) -> Change:
    columns = packed_columns(fields.maps("columns"), payload)
    state, lease, uids = fields.text("state"), fields.text("lease"), fields.texts("uids")
    version = fields.integer("version") if fields.has("version") else None

    def change(store: WarehouseStore) -> dict[str, Any]:
        written = store.write(state=state, lease=lease, uids=uids, columns=columns, version=version)
        return {
            "stored": written.stored,
            "duplicates": written.duplicates,
            "foreign": written.foreign,
        }

    return change


def _drop_batch(fields: Fields, payload: memoryview) -> Change:
    return partial(_drop, fields.text("batch"))


def _drop(batch: str, store: WarehouseStore) -> dict[str, Any]:
    return {"freed": store.drop_batch(batch)}


_READERS: dict[Kind, Callable[[Fields, memoryview], Change]] = {
    Kind.PUT_ROWS: _put_rows,
    Kind.WRITE: _write,
    Kind.DROP_BATCH: _drop_batch,
}
