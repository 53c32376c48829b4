"""What a controller tells of itself when a run hangs: its rows, who holds which, who waits for what.

Bounded, whatever the controller holds. Pure; the server gives it the time.
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
from rljob_runtime.dock.controller.waits import Waiting

MAX_BATCHES, MAX_LEASES, MAX_WAITING = 64, 256, 256
SHOWN_ROWS = 8
EXPLAINED = 32
"""Waiting claims of which it is said why: that looks at every row of their batch."""


def inspection(
    ledger: ControllerLedger,
    waiting: Iterable[Waiting],
    now: float,
    awaited: Callable[[Waiting], str],
) -> dict[str, Any]:
    """As JSON. now: monotonic. awaited: the state that a claim waits for."""
    unfinished = [batch for batch in ledger.batches.values() if not batch.finished]
    parked = list(waiting)
    return {
        "state": ledger.state,
        "needs": sorted(ledger.needs),
        "warehouses": {"known": sorted(ledger.warehouse_epochs), "of": ledger.num_warehouses},
        "acknowledged": ledger.acknowledged,
        "leases_expired": ledger.leases.expired,
        "batches": {b.name: _batch(b) for b in unfinished[-MAX_BATCHES:]},
        "leases": [_lease(one, now) for one in islice(ledger.leases.values(), MAX_LEASES)],
        "waiting": [
            _claim(ledger, claim, now, awaited(claim), explained=place < EXPLAINED)
            for place, claim in enumerate(parked[:MAX_WAITING])
        ],
        "left_out": {
            "batches": max(0, len(unfinished) - MAX_BATCHES),
            "leases": max(0, len(ledger.leases) - MAX_LEASES),
            "waiting": max(0, len(parked) - MAX_WAITING),
        },
    }


def _batch(batch: BatchLedger) -> dict[str, Any]:
    counts = sum(
        (np.bincount(part.rows["status"], minlength=GONE + 1) for part in batch.parts.values()),
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


def _lease(lease: Lease, now: float) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    first: list[str] = []
    for batch, warehouse, numbers in lease.held():
        rows[batch.name] += len(numbers)
        first += batch.parts[warehouse].uids(numbers[: SHOWN_ROWS - len(first)])
    return {
        "owner": lease.owner,
        "held_seconds": round(now - lease.since, 3),
        "expires_in_seconds": round(lease.deadline - now, 3),
        "rows": dict(rows),
        "first_rows": first,
    }


def _claim(
    ledger: ControllerLedger, claim: Waiting, now: float, awaited: str, *, explained: bool
) -> dict[str, Any]:
    request = claim.request
    waited = sum(claim.seconds.values()) + now - claim.since
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
