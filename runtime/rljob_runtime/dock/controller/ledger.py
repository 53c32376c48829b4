"""What one controller knows: which rows its state may claim, who holds them, what is done.

Pure: no I/O, and `now` comes in. The controller server applies the warehouses' broadcasts to it,
asks it for claims, and asks again for parked ones after each change.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.claims import ClaimRequest, Grant, check_age
from rljob_runtime.dock.controller.entries import Entry
from rljob_runtime.dock.controller.leases import Announced, Lease, Leases
from rljob_runtime.dock.warehouse.epoch import start_of
from rljob_runtime.dock.wire.messages import BatchNotice, Notices, RowNotice
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
    entries: dict[str, Entry] = field(default_factory=dict)
    leases: Leases = field(init=False)
    warehouse_epochs: dict[int, str] = field(default_factory=dict)
    acknowledged: int = 0
    _last_grants: dict[str, tuple[str, Grant]] = field(default_factory=dict)
    _announced: dict[str, Announced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leases = Leases(epoch=self.epoch, seconds=self.lease_seconds)

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
            check_age(batch.name, chosen, request.min_version)
        if chosen:
            return self._grant(request, batch, chosen, now)
        if batch.done(request.share):
            return Grant(entries=(), done=True, lease="")
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
        return self.leases.renew(lease_id, uids, now)

    def give_back(self, lease_id: str, uids: Iterable[str]) -> int:
        """Return rows before they are done; returns how many."""
        lease = self.leases.get(lease_id)
        held = [] if lease is None else [lease.rows[uid] for uid in uids if uid in lease.rows]
        for entry in held:
            self._release(entry)
        return len(held)

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
        for row in news.rows:
            self._add(warehouse, row).known[warehouse] += 1
        for column in news.columns:
            entry = self.entries.get(column.uid)
            if entry is not None:
                entry.version = column.version
                self.batches[entry.batch].column_came(entry, column.column, column.length)
        for name, uid in news.acks:
            self.batches[name].acked[warehouse] += 1
            if uid in self.entries:
                self._remove(self.entries[uid])
        self.acknowledged += len(news.acks)
        for name in {name for name, _ in news.acks}:
            if self.batches[name].finished:
                self.batches[name].put.clear()
        for name in news.drops:
            self._drop(name)
        self._forget_old()

    def apply_snapshot(
        self,
        warehouse: int,
        epoch: str,
        batches: Sequence[BatchNotice],
        rows: Sequence[RowNotice],
        now: float,
    ) -> None:
        """All that a warehouse holds, at the start of a subscription.

        Leases on rows that it still holds live on. Rows of an earlier epoch are lost until somebody puts
        them again; those that were put before this came are new ones.
        """
        known = self.warehouse_epochs.get(warehouse, epoch)
        restarted = start_of(known) != start_of(epoch)
        self.warehouse_epochs[warehouse] = epoch
        there = {row.uid for row in rows}
        for entry in [e for e in self.entries.values() if e.warehouse == warehouse]:
            if restarted or entry.uid not in there:
                self._remove(entry)
        for batch in self.batches.values():
            batch.forget_counts(warehouse, lost=restarted)
        for told in batches:
            self._batch(told).count(warehouse, known=told.known, acked=told.acked)
            if told.dropped:
                self._drop(told.name)
        for row in rows:
            entry_now = self.entries.get(row.uid)
            if entry_now is None:
                self._add(warehouse, row)
                continue
            entry_now.version = row.version
            for column, length in row.lengths.items():
                self.batches[row.batch].column_came(entry_now, column, length)
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
        self, request: ClaimRequest, batch: BatchLedger, chosen: list[Entry], now: float
    ) -> Grant:
        lease = self.leases.hold(
            self.leases.next_id(),
            owner=request.owner,
            session=request.session,
            entries=chosen,
            now=now,
        )
        for entry in chosen:
            entry.attempt += 1
        batch.leased(chosen, lease.id)
        grant = Grant(entries=tuple(chosen), done=False, lease=lease.id)
        self._last_grants[request.session] = (request.request, grant)
        return grant

    def _adopt(self, told: Announced, now: float) -> None:
        known = [self.entries[uid] for uid in told.uids if uid in self.entries]
        free = [entry for entry in known if entry.ready]
        if not free:
            return
        self.leases.hold(told.lease, owner=told.owner, session=told.session, entries=free, now=now)
        for entry in free:
            entry.attempt = max(1, entry.attempt)
            self.batches[entry.batch].leased([entry], told.lease)

    def _return(self, leases: Sequence[Lease]) -> int:
        entries = [entry for lease in leases for entry in lease.rows.values()]
        for entry in reversed(entries):  # each goes to the front, so the first ends up first
            self._release(entry)
        return len(entries)

    def _release(self, entry: Entry) -> None:
        """Take a row out of its lease; it is claimable again."""
        self.leases.leave(entry)
        self.batches[entry.batch].returned(entry)

    def _batch(self, told: BatchNotice) -> BatchLedger:
        batch = self.batches.get(told.name)
        if batch is None:
            passes = self.state in told.states
            batch = BatchLedger(name=told.name, total=told.total if passes else 0)
            self.batches[told.name] = batch
        return batch

    def _add(self, warehouse: int, row: RowNotice) -> BatchLedger:
        entry = Entry(
            uid=row.uid,
            batch=row.batch,
            group=row.group,
            group_index=row.group_index,
            group_size=row.group_size,
            sample=row.sample,
            version=row.version,
            warehouse=warehouse,
            lengths=dict(row.lengths),
            missing=set(self.needs.difference(row.lengths)),
        )
        self.entries[row.uid] = entry
        batch = self.batches[row.batch]
        batch.add(entry)
        return batch

    def _remove(self, entry: Entry) -> None:
        """The row is acknowledged, dropped or lost."""
        self.leases.leave(entry)
        del self.entries[entry.uid]
        self.batches[entry.batch].remove(entry)

    def _drop(self, name: str) -> None:
        batch = self.batches.setdefault(name, BatchLedger(name=name, total=0))
        batch.dropped = True
        for entry in [e for e in self.entries.values() if e.batch == name]:
            self._remove(entry)

    def _forget_old(self) -> None:
        if len(self.batches) <= REMEMBERED_BATCHES:
            return
        over = [name for name, batch in self.batches.items() if batch.finished]
        for name in over[: len(self.batches) - REMEMBERED_BATCHES]:
            del self.batches[name]
