"""A warehouse's state for inspection when a run hangs: which columns its rows have, what waits for room.

Its size is bounded, whatever the warehouse stores. Pure.
"""

from typing import Any

from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.store import WarehouseStore

MAX_BATCHES = 64
MAX_ROWS = 100_000
"""Maximum number of rows of a batch that are counted."""


def inspection(store: WarehouseStore) -> dict[str, Any]:
    """Return bytes, and by batch how many live rows have each column and each acknowledgement, as JSON."""
    live = [record for record in store.batches.values() if record.live]
    return {
        "rows": store.num_rows,
        "bytes": store.charged_bytes,
        "capacity_bytes": store.capacity_bytes,
        "held_by_readers_bytes": store.slabs.retained_bytes,
        "unacknowledged": store.unacknowledged(),
        "batches": {record.name: _batch(record) for record in live[-MAX_BATCHES:]},
        "left_out": {"batches": max(0, len(live) - MAX_BATCHES)},
    }


def _batch(record: BatchRecord) -> dict[str, Any]:
    rows = record.live_rows()[:MAX_ROWS]
    counts = {
        name: int((record.columns.lengths(name, rows) >= 0).sum())
        for name in record.columns.formats
        if name not in record.columns.shared
    }
    return {
        "total": record.total,
        "live": record.live,
        "columns": {name: number for name, number in counts.items() if number},
        "group_columns": sorted(record.columns.shared),
        "acknowledged": {
            state: int(record.is_acknowledged(state, rows).sum()) for state in record.states
        },
    }
