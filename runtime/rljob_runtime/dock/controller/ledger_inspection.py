"""A controller's state for inspection when a run hangs: its rows, who holds which, who waits for what.

Its size is bounded, whatever the controller stores. Pure; the server passes the time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.leases import Lease
from rljob_runtime.dock.controller.ledger import ControllerLedger
from rljob_runtime.dock.controller.part import GONE, LACKING, LEASED, READY
from rljob_runtime.dock.controller.waits import ParkedClaim

MAX_BATCHES, MAX_LEASES, MAX_WAITING = 64, 256, 256
SHOWN_ROWS = 8
EXPLAINED = 32
"""Number of waiting claims whose cause is explained: that reads every row of their batch."""


def inspection(
    ledger: ControllerLedger,
    waiting: Iterable[ParkedClaim],
    time_s: float,
    awaited: Callable[[ParkedClaim], str],
) -> dict[str, Any]:
    """Return the controller's state as JSON.

    time_s: monotonic. awaited: returns the state that a claim waits for.
    """
    unfinished = [batch for batch in ledger.batches.values() if not batch.finished]
    parked = list(waiting)
    return {
        "state": ledger.state,
        "needs": sorted(ledger.needs),
        "warehouses": {"known": sorted(ledger.warehouse_epochs), "of": ledger.num_warehouses},
        "acknowledged": ledger.acknowledged,
        "leases_expired": ledger.leases.expired,
        "batches": {b.name: _batch(b) for b in unfinished[-MAX_BATCHES:]},
        "leases": [_lease(one, time_s) for one in islice(ledger.leases.values(), MAX_LEASES)],
        "waiting": [
            _claim(ledger, claim, time_s, awaited(claim), explained=number < EXPLAINED)
            for number, claim in enumerate(parked[:MAX_WAITING])
        ],
        "left_out": {
            "batches": max(0, len(unfinished) - MAX_BATCHES),
            "leases": max(0, len(ledger.leases) - MAX_LEASES),
            "waiting": max(0, len(parked) - MAX_WAITING),
        },
    }


def _batch(batch: BatchLedger) -> dict[str, Any]:
    counts = sum(
        (np.bincount(shard.rows["status"], minlength=GONE + 1) for shard in batch.shards.values()),
        start=np.zeros(GONE + 1, dtype=np.int64),
    ).tolist()
    return {
        "total": batch.total,
        "put": batch.num_known,
        "acknowledged": batch.acked.total(),
        "lost": batch.num_lost,
        "rows": {"lacking": counts[LACKING], "ready": counts[READY], "leased": counts[LEASED]},
        "lacking_columns": dict(batch.lacking().most_common()),
    }


def _lease(lease: Lease, time_s: float) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    first_rows: list[str] = []
    for batch, warehouse, numbers in lease.leased_rows():
        rows[batch.name] += len(numbers)
        first_rows += batch.shards[warehouse].uids(numbers[: SHOWN_ROWS - len(first_rows)])
    return {
        "owner": lease.owner,
        "held_seconds": round(time_s - lease.since, 3),
        "expires_in_seconds": round(lease.deadline - time_s, 3),
        "rows": dict(rows),
        "first_rows": first_rows,
    }


def _claim(
    ledger: ControllerLedger, claim: ParkedClaim, time_s: float, awaited: str, *, explained: bool
) -> dict[str, Any]:
    request = claim.request
    waited = sum(claim.seconds.values()) + time_s - claim.since
    share: Mapping[str, int] | None = None
    if request.share is not None:
        share = {"rank": request.share.rank, "of": request.share.of}
    return {
        "owner": request.owner,
        "batch": request.batch,
        "limit": request.limit,
        "share": share,
        "min_version": request.min_version,
        "waited_seconds": round(waited, 3),
        "awaits": awaited,
        "why": ledger.explain(request, waited) if explained else "",
    }
