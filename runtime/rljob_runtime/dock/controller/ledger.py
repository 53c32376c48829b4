"""What one controller knows: which rows its state may claim, who holds them, what is done.

Pure: no I/O, and `now` comes in. The controller server applies the warehouses' broadcasts to it,
asks it for claims, and asks again for parked ones after each change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger, rows_by_name
from rljob_runtime.dock.controller.chosen import Chosen
from rljob_runtime.dock.controller.claims import ClaimRequest, Grant, check_age, claimed
from rljob_runtime.dock.controller.leases import Announced, Lease, Leases
from rljob_runtime.dock.controller.lines import NOBODY
from rljob_runtime.dock.controller.part import READY, UNKNOWN, only_rows
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.epoch import start_of
from rljob_runtime.dock.wire.messages import BatchNotice, Notices, RowsNotice, numbers_of
from rljob_runtime.errors import DockLost

REMEMBERED_BATCHES = 1000
"""Finished batches whose counts are kept, so that a late claim is told that they are done."""


@dataclass(slots=True, kw_only=True)
class ControllerLedger:
    """Metadata of one state's rows. epoch: unique for each start.

    acknowledged: rows, as the warehouses told since it started.
    """

    state: str
    needs: frozenset[str]
    lease_seconds: float
    epoch: str
    num_warehouses: int
    batches: dict[str, BatchLedger] = field(default_factory=dict)
    leases: Leases = field(init=False)
    warehouse_epochs: dict[int, str] = field(default_factory=dict)
    acknowledged: int = 0
    _last_grants: dict[str, tuple[str, Grant]] = field(default_factory=dict)
    _announced: dict[str, Announced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leases = Leases(epoch=self.epoch, seconds=self.lease_seconds)

    @property
    def num_rows(self) -> int:
        """Rows that the state has not acknowledged."""
        return sum(batch.num_rows for batch in self.batches.values())

    @property
    def synced(self) -> bool:
        """True once every warehouse has sent a snapshot."""
        return len(self.warehouse_epochs) == self.num_warehouses

    def claim(self, request: ClaimRequest, now: float) -> Grant | None:
        """Lease rows to the owner; None when it must wait. Raises DockLost, DockStale.

        A repeated request gets the same answer again as long as its lease lives.
        """
        last = self._last_grants.get(request.session)
        if last is not None and last[0] == request.request and last[1].lease in self.leases:
            return last[1]
        batch = self.batches.get(request.batch)
        if batch is None:
            return None
        if batch.dropped:
            raise DockLost(f"batch {batch.name} was dropped")
        if batch.num_lost:
            raise DockLost(
                f"{batch.num_lost} of {batch.total} rows of {batch.name} were lost with their "
                "warehouse; put them again or start the batch over under another name"
            )
        chosen = batch.choose(request.limit, request.whole_groups, request.share)
        if request.min_version is not None:
            check_age(batch, chosen, request.min_version)
        if chosen.num_rows:
            return self._grant(request, batch, chosen, now)
        if batch.done(request.share):
            return Grant(rows=None, done=True, lease="")
        return None

    def renew(
        self, lease_id: str, *, owner: str, session: str, uids: Sequence[str], now: float
    ) -> list[str]:
        """Move a lease's deadline; returns the uids that it does not hold any more.

        A lease that this controller never gave (it was restarted) is taken over with those of its
        rows that nobody has claimed since; until every warehouse was heard, none is called lost.
        """
        if self.leases.foreign(lease_id):
            announced = Announced(lease=lease_id, owner=owner, session=session, uids=tuple(uids))
            self._adopt(announced, now)
            if not self.synced:
                self._announced[lease_id] = announced
                return []
        return self.leases.renew(lease_id, list(uids), now)

    def give_back(self, lease_id: str, uids: Iterable[str]) -> int:
        """Return rows before they are done; returns how many."""
        lease, named = self.leases.get(lease_id), set(uids)
        returned = 0
        for batch, warehouse, numbers in lease.held() if lease is not None else ():
            own = np.array([uid in named for uid in batch.parts[warehouse].uids(numbers)])
            if own.any():
                self._release(batch, warehouse, numbers[own])
                returned += int(own.sum())
        return returned

    def owner_gone(self, owner: str, session: str | None = None) -> int:
        """Return all rows of an owner (of one of its processes); returns how many."""
        gone = self.leases.of(owner, session)
        if session is not None:
            self._last_grants.pop(session, None)
        for known in [a for a in self._announced.values() if a.owner == owner]:
            if session in (None, known.session):
                del self._announced[known.lease]
        return self._return(gone)

    def expire(self, now: float) -> int:
        """Return rows of leases past their deadline; returns how many."""
        return self._return(self.leases.late(now))

    def apply(self, warehouse: int, news: Notices) -> None:
        """What a warehouse broadcast."""
        for batch in news.batches:
            self._batch(batch)
        for rows in news.rows:
            self._add(warehouse, rows)
            self.batches[rows.batch].known[warehouse] += len(numbers_of(rows.numbers))
        for told in news.columns:
            self.batches[told.batch].column_came(
                warehouse,
                told.column,
                numbers_of(told.numbers),
                numbers_of(told.lengths),
                numbers_of(told.versions),
            )
        for acks in news.acks:
            self._acknowledged(warehouse, self.batches[acks.batch], numbers_of(acks.numbers))
        for name in news.drops:
            self._drop(name)
        self._forget_old()

    def apply_snapshot(
        self,
        warehouse: int,
        epoch: str,
        batches: Sequence[BatchNotice],
        rows: Sequence[RowsNotice],
        now: float,
    ) -> None:
        """All that a warehouse holds, at the start of a subscription.

        Leases on rows that it still holds live on. Rows of an earlier epoch are lost until somebody puts
        them again; those that were put before this came are new ones.
        """
        known = self.warehouse_epochs.get(warehouse, epoch)
        restarted = start_of(known) != start_of(epoch)
        self.warehouse_epochs[warehouse] = epoch
        there = {told.batch: numbers_of(told.numbers) for told in rows}
        for batch in self.batches.values():
            if (part := batch.parts.get(warehouse)) is not None:
                left = part.all_there()
                gone = left if restarted else np.setdiff1d(left, there.get(batch.name, NOBODY))
                self._remove(batch, warehouse, gone)
            batch.forget_counts(warehouse, lost=restarted)
        for notice in batches:
            batch = self._batch(notice)
            batch.count(warehouse, known=notice.known, acked=notice.acked)
            if restarted:
                batch.excused[warehouse] = notice.acked
            if notice.dropped:
                self._drop(notice.name)
        for told in rows:
            self._take_again(warehouse, told)
        for announced in self._announced.values():
            self._adopt(announced, now)
        if self.synced:
            self._announced.clear()
        self._forget_old()

    def explain(self, request: ClaimRequest, waited_seconds: float) -> str:
        """Why a claim is still waiting, in a sentence for its error."""
        head = f"state {self.state} waited {waited_seconds:.3g} s for rows of {request.batch}: "
        reasons = [
            f"warehouse {index} has not been reached by this controller"
            for index in range(self.num_warehouses)
            if index not in self.warehouse_epochs
        ]
        batch = self.batches.get(request.batch)
        reasons += ["no row of it was put"] if batch is None else batch.reasons(request.share)
        held = self.leases.holders(request.batch)
        holders = [f"{owner} holds {count} rows" for owner, count in held.items()]
        return head + "; ".join(reasons + holders or ["its rows became ready just now"])

    def next_lacks(self, request: ClaimRequest) -> frozenset[str] | None:
        """What a waiting claim waits for, as BatchLedger.next_lacks."""
        batch = self.batches.get(request.batch)
        return None if batch is None else batch.next_lacks(request.share)

    def _grant(
        self, request: ClaimRequest, batch: BatchLedger, chosen: Chosen, now: float
    ) -> Grant:
        lease = self.leases.hold(
            self.leases.next_id(),
            owner=request.owner,
            session=request.session,
            batch=batch,
            chosen=chosen,
            now=now,
        )
        grant = Grant(rows=claimed(batch, chosen), done=False, lease=lease.id)
        self._last_grants[request.session] = (request.request, grant)
        return grant

    def _adopt(self, told: Announced, now: float) -> None:
        for batch, warehouse, numbers in rows_by_name(self.batches.values(), told.uids):
            free = numbers[batch.parts[warehouse].rows["status"][numbers] == READY]
            if len(free):
                chosen = Chosen.of_one(warehouse, free)
                self.leases.hold(
                    told.lease,
                    owner=told.owner,
                    session=told.session,
                    batch=batch,
                    chosen=chosen,
                    now=now,
                )

    def _return(self, leases: Sequence[Lease]) -> int:
        returned = 0
        for lease in reversed(leases):  # each goes to the front, so the first ends up first
            for batch, warehouse, numbers in reversed(lease.held()):
                self._release(batch, warehouse, numbers)
                returned += len(numbers)
        return returned

    def _release(self, batch: BatchLedger, warehouse: int, numbers: Array) -> None:
        """Take rows out of their lease; they are claimable again."""
        self.leases.leave(batch.parts[warehouse], numbers)
        batch.returned(warehouse, numbers)

    def _batch(self, told: BatchNotice) -> BatchLedger:
        batch = self.batches.get(told.name)
        if batch is None:
            passes = self.state in told.states
            batch = BatchLedger(
                name=told.name, needs=self._needs, total=told.total if passes else 0
            )
            self.batches[told.name] = batch
        return batch

    @property
    def _needs(self) -> tuple[str, ...]:
        return tuple(sorted(self.needs))

    def _add(self, warehouse: int, told: RowsNotice) -> None:
        self.batches[told.batch].add(warehouse, told)

    def _take_again(self, warehouse: int, told: RowsNotice) -> None:
        """Rows of a snapshot, some of which may be known."""
        batch, numbers = self.batches[told.batch], numbers_of(told.numbers)
        part = batch.part(warehouse)
        known = part.there(numbers)
        for column, lengths in told.lengths.items():
            has = known & (numbers_of(lengths) != UNKNOWN)
            batch.column_came(
                warehouse,
                column,
                numbers[has],
                numbers_of(lengths)[has],
                numbers_of(told.versions)[has],
            )
        if not known.all():
            self._add(warehouse, only_rows(told, ~known))

    def _acknowledged(self, warehouse: int, batch: BatchLedger, numbers: Array) -> None:
        batch.acked[warehouse] += len(numbers)
        self.acknowledged += len(numbers)
        if (part := batch.parts.get(warehouse)) is not None:
            self._remove(batch, warehouse, numbers[part.there(numbers)])
        if batch.finished:
            batch.forget_rows()

    def _remove(self, batch: BatchLedger, warehouse: int, numbers: Array) -> None:
        """Rows are acknowledged, dropped or lost."""
        if len(numbers):
            self.leases.leave(batch.parts[warehouse], numbers)
            batch.remove(warehouse, numbers)

    def _drop(self, name: str) -> None:
        batch = self.batches.setdefault(name, BatchLedger(name=name, needs=self._needs, total=0))
        batch.dropped = True
        for warehouse, part in batch.parts.items():
            self._remove(batch, warehouse, part.all_there())
        batch.forget_rows()

    def _forget_old(self) -> None:
        if len(self.batches) <= REMEMBERED_BATCHES:
            return
        over = [name for name, batch in self.batches.items() if batch.finished]
        for name in over[: len(self.batches) - REMEMBERED_BATCHES]:
            del self.batches[name]
