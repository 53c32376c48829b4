"""Metadata of one controller's rows: which rows its state may claim, who holds them, which are done.

Pure: it does no I/O and gets the time as an argument. The controller server applies the warehouses'
broadcasts, submits claims, and submits parked claims again after each change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger, rows_by_name
from rljob_runtime.dock.controller.chosen import ChosenRows
from rljob_runtime.dock.controller.claims import ClaimGrant, ClaimRequest, check_age, claimed_rows
from rljob_runtime.dock.controller.leases import AnnouncedLease, Lease, Leases
from rljob_runtime.dock.controller.lines import NO_KEYS
from rljob_runtime.dock.controller.part import READY, UNKNOWN, select_rows
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.epoch import start_of
from rljob_runtime.dock.wire.messages import BatchNotice, Notices, RowsNotice, unpack_numbers
from rljob_runtime.errors import DockLost

REMEMBERED_BATCHES = 1000
"""Number of finished batches whose counts are retained, so that a late claim is answered with `done`."""


@dataclass(slots=True, kw_only=True)
class ControllerLedger:
    """Metadata of one state's rows.

    epoch: unique for each start. acknowledged: number of rows that the warehouses reported as acknowledged
    since it started.
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
    _last_grants: dict[str, tuple[str, ClaimGrant]] = field(default_factory=dict)
    _announced: dict[str, AnnouncedLease] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leases = Leases(epoch=self.epoch, seconds=self.lease_seconds)

    @property
    def num_rows(self) -> int:
        """The number of rows that the state has not acknowledged."""
        return sum(batch.num_rows for batch in self.batches.values())

    @property
    def synced(self) -> bool:
        """True once every warehouse has sent a snapshot."""
        return len(self.warehouse_epochs) == self.num_warehouses

    def claim(self, request: ClaimRequest, time_s: float) -> ClaimGrant | None:
        """Lease rows to the owner; None when the claim must wait. Raises DockLost, DockStale.

        A repeated request gets the same grant as long as its lease lives.
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
            return self._grant(request, batch, chosen, time_s)
        if batch.done(request.share):
            return ClaimGrant(rows=None, done=True, lease="")
        return None

    def renew(
        self, lease_id: str, *, owner: str, session: str, uids: Sequence[str], time_s: float
    ) -> list[str]:
        """Extend a lease's deadline; return the uids that it does not hold any more.

        A lease that an earlier process of this controller granted is adopted, with those of its rows that are
        not claimed. Until every warehouse has sent its snapshot, none of its rows counts as lost.
        """
        if self.leases.foreign(lease_id):
            announced = AnnouncedLease(
                lease=lease_id, owner=owner, session=session, uids=tuple(uids)
            )
            self._adopt(announced, time_s)
            if not self.synced:
                self._announced[lease_id] = announced
                return []
        return self.leases.renew(lease_id, list(uids), time_s)

    def give_back(self, lease_id: str, uids: Iterable[str]) -> int:
        """Return rows before they are done; return their number."""
        lease, names = self.leases.get(lease_id), set(uids)
        returned = 0
        for batch, warehouse, numbers in lease.leased_rows() if lease is not None else ():
            is_named = np.array([uid in names for uid in batch.shards[warehouse].uids(numbers)])
            if is_named.any():
                self._release(batch, warehouse, numbers[is_named])
                returned += int(is_named.sum())
        return returned

    def owner_gone(self, owner: str, session: str | None = None) -> int:
        """Return all rows of an owner (or of one of its processes); return their number."""
        leases = self.leases.of_owner(owner, session)
        if session is not None:
            self._last_grants.pop(session, None)
        for announced in [a for a in self._announced.values() if a.owner == owner]:
            if session in (None, announced.session):
                del self._announced[announced.lease]
        return self._return(leases)

    def expire(self, time_s: float) -> int:
        """Return the rows of leases past their deadline; return their number."""
        return self._return(self.leases.overdue(time_s))

    def apply(self, warehouse: int, notices: Notices) -> None:
        """Apply a warehouse's broadcast."""
        for batch in notices.batches:
            self._batch(batch)
        for rows in notices.rows:
            self._add(warehouse, rows)
            self.batches[rows.batch].known[warehouse] += len(unpack_numbers(rows.numbers))
        for column in notices.columns:
            self.batches[column.batch].update_column(
                warehouse,
                column.column,
                unpack_numbers(column.numbers),
                unpack_numbers(column.lengths),
                unpack_numbers(column.versions),
            )
        for acks in notices.acks:
            self._acknowledge(warehouse, self.batches[acks.batch], unpack_numbers(acks.numbers))
        for name in notices.drops:
            self._drop(name)
        self._forget_old()

    def apply_snapshot(
        self,
        warehouse: int,
        epoch: str,
        batches: Sequence[BatchNotice],
        rows: Sequence[RowsNotice],
        time_s: float,
    ) -> None:
        """Apply all that a warehouse stores, at the start of a subscription.

        Leases on rows that it still stores stay valid. Rows of an earlier epoch are lost until they are put
        again; rows that were put before this snapshot count as new.
        """
        known_epoch = self.warehouse_epochs.get(warehouse, epoch)
        restarted = start_of(known_epoch) != start_of(epoch)
        self.warehouse_epochs[warehouse] = epoch
        present = {rows_notice.batch: unpack_numbers(rows_notice.numbers) for rows_notice in rows}
        for batch in self.batches.values():
            if (shard := batch.shards.get(warehouse)) is not None:
                live = shard.all_present()
                gone = live if restarted else np.setdiff1d(live, present.get(batch.name, NO_KEYS))
                self._remove(batch, warehouse, gone)
            batch.forget_counts(warehouse, lost=restarted)
        for notice in batches:
            batch = self._batch(notice)
            batch.count(warehouse, known=notice.known, acked=notice.acked)
            if restarted:
                batch.excused[warehouse] = notice.acked
            if notice.dropped:
                self._drop(notice.name)
        for rows_notice in rows:
            self._merge(warehouse, rows_notice)
        for announced in self._announced.values():
            self._adopt(announced, time_s)
        if self.synced:
            self._announced.clear()
        self._forget_old()

    def explain(self, request: ClaimRequest, waited_seconds: float) -> str:
        """Return a sentence for an error: why a claim still waits."""
        head = f"state {self.state} waited {waited_seconds:.3g} s for rows of {request.batch}: "
        reasons = [
            f"warehouse {index} has not been reached by this controller"
            for index in range(self.num_warehouses)
            if index not in self.warehouse_epochs
        ]
        batch = self.batches.get(request.batch)
        reasons += ["no row of it was put"] if batch is None else batch.reasons(request.share)
        leased_rows = self.leases.holders(request.batch)
        holders = [f"{owner} holds {count} rows" for owner, count in leased_rows.items()]
        return head + "; ".join(reasons + holders or ["its rows became ready just now"])

    def next_missing_columns(self, request: ClaimRequest) -> frozenset[str] | None:
        """Return the columns that a waiting claim waits for; see `BatchLedger.next_missing_columns`."""
        batch = self.batches.get(request.batch)
        return None if batch is None else batch.next_missing_columns(request.share)

    def _grant(
        self, request: ClaimRequest, batch: BatchLedger, chosen: ChosenRows, time_s: float
    ) -> ClaimGrant:
        lease = self.leases.hold(
            self.leases.next_id(),
            owner=request.owner,
            session=request.session,
            batch=batch,
            chosen=chosen,
            time_s=time_s,
        )
        grant = ClaimGrant(rows=claimed_rows(batch, chosen), done=False, lease=lease.id)
        self._last_grants[request.session] = (request.request, grant)
        return grant

    def _adopt(self, announced: AnnouncedLease, time_s: float) -> None:
        for batch, warehouse, numbers in rows_by_name(self.batches.values(), announced.uids):
            ready = numbers[batch.shards[warehouse].rows["status"][numbers] == READY]
            if len(ready):
                chosen = ChosenRows.from_warehouse(warehouse, ready)
                self.leases.hold(
                    announced.lease,
                    owner=announced.owner,
                    session=announced.session,
                    batch=batch,
                    chosen=chosen,
                    time_s=time_s,
                )

    def _return(self, leases: Sequence[Lease]) -> int:
        returned = 0
        for lease in reversed(leases):  # each is inserted at the front, so the first ends up first
            for batch, warehouse, numbers in reversed(lease.leased_rows()):
                self._release(batch, warehouse, numbers)
                returned += len(numbers)
        return returned

    def _release(self, batch: BatchLedger, warehouse: int, numbers: Array) -> None:
        """Take rows out of their lease and make them claimable again."""
        self.leases.remove_rows(batch.shards[warehouse], numbers)
        batch.mark_returned(warehouse, numbers)

    def _batch(self, notice: BatchNotice) -> BatchLedger:
        batch = self.batches.get(notice.name)
        if batch is None:
            passes = self.state in notice.states
            batch = BatchLedger(
                name=notice.name, needs=self._needs, total=notice.total if passes else 0
            )
            self.batches[notice.name] = batch
        return batch

    @property
    def _needs(self) -> tuple[str, ...]:
        return tuple(sorted(self.needs))

    def _add(self, warehouse: int, notice: RowsNotice) -> None:
        self.batches[notice.batch].add(warehouse, notice)

    def _merge(self, warehouse: int, notice: RowsNotice) -> None:
        """Apply the rows of a snapshot, some of which may be known."""
        batch, numbers = self.batches[notice.batch], unpack_numbers(notice.numbers)
        shard = batch.shard(warehouse)
        known = shard.present(numbers)
        for column, lengths in notice.lengths.items():
            has_column = known & (unpack_numbers(lengths) != UNKNOWN)
            batch.update_column(
                warehouse,
                column,
                numbers[has_column],
                unpack_numbers(lengths)[has_column],
                unpack_numbers(notice.versions)[has_column],
            )
        if not known.all():
            self._add(warehouse, select_rows(notice, ~known))

    def _acknowledge(self, warehouse: int, batch: BatchLedger, numbers: Array) -> None:
        batch.acked[warehouse] += len(numbers)
        self.acknowledged += len(numbers)
        if (shard := batch.shards.get(warehouse)) is not None:
            self._remove(batch, warehouse, numbers[shard.present(numbers)])
        if batch.finished:
            batch.forget_rows()

    def _remove(self, batch: BatchLedger, warehouse: int, numbers: Array) -> None:
        """Remove rows that are acknowledged, dropped or lost."""
        if len(numbers):
            self.leases.remove_rows(batch.shards[warehouse], numbers)
            batch.remove(warehouse, numbers)

    def _drop(self, name: str) -> None:
        batch = self.batches.setdefault(name, BatchLedger(name=name, needs=self._needs, total=0))
        batch.dropped = True
        for warehouse, shard in batch.shards.items():
            self._remove(batch, warehouse, shard.all_present())
        batch.forget_rows()

    def _forget_old(self) -> None:
        if len(self.batches) <= REMEMBERED_BATCHES:
            return
        finished = [name for name, batch in self.batches.items() if batch.finished]
        for name in finished[: len(self.batches) - REMEMBERED_BATCHES]:
            del self.batches[name]
