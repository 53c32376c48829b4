"""What a warehouse tells of itself when a run hangs: which columns its rows have, what waits for room.

Bounded, whatever the warehouse holds. Pure.
"""

from collections import Counter
from itertools import islice
from typing import Any

from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.store import WarehouseStore

MAX_BATCHES = 64
MAX_ROWS = 100_000
"""Of a batch that are looked at."""


def inspection(store: WarehouseStore) -> dict[str, Any]:
    """As JSON: bytes, and by batch how many live rows have each column and each acknowledgement."""
    live = [record for record in store.batches.values() if record.live]
    return {
        "rows": len(store.rows),
        "bytes": store.charged_bytes,
        "capacity_bytes": store.capacity_bytes,
        "held_by_readers_bytes": store.cells.retained_bytes,
        "unacknowledged": store.unacknowledged(),
        "batches": {record.name: _batch(store, record) for record in live[-MAX_BATCHES:]},
        "left_out": {"batches": max(0, len(live) - MAX_BATCHES)},
    }


def _batch(store: WarehouseStore, record: BatchRecord) -> dict[str, Any]:
    columns: Counter[str] = Counter()
    acknowledged: Counter[str] = Counter()
    for uid in islice(record.live, MAX_ROWS):
        columns.update(store.rows[uid].cells.keys())
        acknowledged.update(store.rows[uid].acks.keys())
    return {
        "total": record.total,
        "live": len(record.live),
        "columns": dict(columns),
        "group_columns": sorted(record.group_names),
        "acknowledged": {state: acknowledged[state] for state in record.states},
    }
