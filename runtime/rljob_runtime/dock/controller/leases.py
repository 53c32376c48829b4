"""Leases of one controller's state: who holds which rows, and until when. Pure; used by the controller's
ledger."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.chosen import ChosenRows
from rljob_runtime.dock.controller.part import BatchShard
from rljob_runtime.dock.growing import Array


@dataclass(slots=True, kw_only=True)
class Lease:
    """Rows that one owner has leased since `since`, until `deadline` or until they are acknowledged.

    number: the lease's number in the shards' arrays. grants: rows that it was granted, by batch. num_rows:
    how many of them it still holds.
    """

    id: str
    number: int
    owner: str
    session: str
    since: float
    deadline: float
    grants: list[tuple[BatchLedger, ChosenRows]] = field(default_factory=list)
    num_rows: int = 0

    def leased_rows(self) -> list[tuple[BatchLedger, int, Array]]:
        """Return the lease's rows: batch, warehouse, numbers there in the order in which they were
        granted."""
        leased = []
        for batch, chosen in self.grants:
            for warehouse, _, numbers in chosen.chunks:
                shard = batch.shards.get(warehouse)
                if shard is not None:
                    numbers = numbers[numbers < shard.rows.length]
                    local_numbers = numbers[shard.rows["lease"][numbers] == self.number]
                    if len(local_numbers):
                        leased.append((batch, warehouse, local_numbers))
        return leased

    def uids(self) -> list[str]:
        """Return the uids of the lease's rows."""
        return [
            uid for batch, w, numbers in self.leased_rows() for uid in batch.shards[w].uids(numbers)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedLease:
    """A lease that a former process of this controller granted, as its owner announced it."""

    lease: str
    owner: str
    session: str
    uids: tuple[str, ...]


class Leases(OrderedDict[str, Lease]):
    """The live leases by id, in order of expiry, since all leases have the same duration.

    epoch: unique for each start of the controller, a prefix of every id. expired: the number of expired
    leases.
    """

    def __init__(self, *, epoch: str, seconds: float) -> None:
        super().__init__()
        self.epoch, self.seconds = epoch, seconds
        self.expired = 0
        self._num_ids = 0
        self._last_number = 0
        self._by_number: dict[int, Lease] = {}

    def next_id(self) -> str:
        """Return the id of a new lease."""
        self._num_ids += 1
        return f"{self.epoch}-{self._num_ids}"

    def foreign(self, lease_id: str) -> bool:
        """Return True for a lease that another start of the controller granted."""
        return not lease_id.startswith(f"{self.epoch}-")

    def hold(
        self,
        lease_id: str,
        *,
        owner: str,
        session: str,
        batch: BatchLedger,
        chosen: ChosenRows,
        time_s: float,
    ) -> Lease:
        """Lease rows of a batch to the owner; the lease is created where it does not exist."""
        lease = self.get(lease_id)
        if lease is None:
            self._last_number += 1
            lease = Lease(
                id=lease_id,
                number=self._last_number,
                owner=owner,
                session=session,
                since=time_s,
                deadline=time_s + self.seconds,
            )
            self[lease_id] = self._by_number[lease.number] = lease
        batch.mark_leased(chosen, lease.number)
        lease.grants.append((batch, chosen))
        lease.num_rows += chosen.num_rows
        return lease

    def renew(self, lease_id: str, uids: list[str], time_s: float) -> list[str]:
        """Extend a lease's deadline; return the uids that it does not hold any more."""
        lease = self.get(lease_id)
        if lease is None:
            return list(uids)
        lease.deadline = time_s + self.seconds
        self.move_to_end(lease_id)
        if len(uids) == lease.num_rows and not self._has_released_rows(lease):
            return []
        leased_uids = set(lease.uids())
        return [uid for uid in uids if uid not in leased_uids]

    def remove_rows(self, shard: BatchShard, numbers: Array) -> None:
        """Take rows out of their leases; a lease without rows ends."""
        lease_numbers = shard.rows["lease"][numbers]
        if len(lease_numbers) and (lease_numbers == lease_numbers[0]).all():
            self._decrease(int(lease_numbers[0]), len(lease_numbers))
            return
        for number, count in zip(*np.unique(lease_numbers, return_counts=True), strict=True):
            self._decrease(int(number), int(count))

    def _decrease(self, number: int, num_rows: int) -> None:
        lease = self._by_number.get(number)
        if lease is not None:
            lease.num_rows -= num_rows
            if not lease.num_rows:
                del self[lease.id], self._by_number[number]

    def of_owner(self, owner: str, session: str | None) -> list[Lease]:
        """Return the leases of an owner, or of one of its processes."""
        return [
            lease
            for lease in self.values()
            if lease.owner == owner and session in (None, lease.session)
        ]

    def overdue(self, time_s: float) -> list[Lease]:
        """Return the leases whose deadline has passed, and count them as expired."""
        overdue = list(takewhile(lambda lease: lease.deadline <= time_s, self.values()))
        self.expired += len(overdue)
        return overdue

    def next_deadline(self) -> float | None:
        """Return the deadline of the lease that expires first."""
        first = next(iter(self.values()), None)
        return None if first is None else first.deadline

    def holders(self, batch: str) -> dict[str, int]:
        """Count the rows of the batch that each owner holds; owners without rows are left out."""
        counts: dict[str, int] = {}
        for lease in self.values():
            for leased_batch, _, numbers in lease.leased_rows():
                if leased_batch.name == batch:
                    counts[lease.owner] = counts.get(lease.owner, 0) + len(numbers)
        return counts

    def _has_released_rows(self, lease: Lease) -> bool:
        return lease.num_rows < sum(chosen.num_rows for _, chosen in lease.grants)
