"""Who holds which rows of one controller's state, and until when. Pure; the controller's ledger asks it."""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.chosen import Chosen
from rljob_runtime.dock.controller.part import Part
from rljob_runtime.dock.growing import Array


@dataclass(slots=True, kw_only=True)
class Lease:
    """Rows that one owner holds since `since`, until `deadline` or until they are acknowledged.

    number: in the parts' arrays. given: what it was given of each batch. num_rows: that it holds still.
    """

    id: str
    number: int
    owner: str
    session: str
    since: float
    deadline: float
    given: list[tuple[BatchLedger, Chosen]] = field(default_factory=list)
    num_rows: int = 0

    def held(self) -> list[tuple[BatchLedger, int, Array]]:
        """Its rows: batch, warehouse, numbers there in the order in which they were given."""
        found = []
        for batch, chosen in self.given:
            for warehouse, _, numbers in chosen.pieces:
                part = batch.parts.get(warehouse)
                if part is not None:
                    numbers = numbers[numbers < part.rows.length]
                    own = numbers[part.rows["lease"][numbers] == self.number]
                    if len(own):
                        found.append((batch, warehouse, own))
        return found

    def uids(self) -> list[str]:
        """Names of its rows."""
        return [uid for batch, w, numbers in self.held() for uid in batch.parts[w].uids(numbers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """A lease of this controller's predecessor, as its owner told it."""

    lease: str
    owner: str
    session: str
    uids: tuple[str, ...]


class Leases(OrderedDict[str, Lease]):
    """The leases that live, by id: all live equally long, so that the first is the first to expire.

    epoch: unique for each start of the controller, part of every id. expired: how many did.
    """

    def __init__(self, *, epoch: str, seconds: float) -> None:
        super().__init__()
        self.epoch, self.seconds = epoch, seconds
        self.expired = 0
        self._given = 0
        self._numbers = 0
        self._by_number: dict[int, Lease] = {}

    def next_id(self) -> str:
        """For a new lease."""
        self._given += 1
        return f"{self.epoch}-{self._given}"

    def foreign(self, lease_id: str) -> bool:
        """True for one that another start of the controller gave."""
        return not lease_id.startswith(f"{self.epoch}-")

    def hold(
        self,
        lease_id: str,
        *,
        owner: str,
        session: str,
        batch: BatchLedger,
        chosen: Chosen,
        now: float,
    ) -> Lease:
        """Give rows of a batch to the owner under this lease, new or not."""
        lease = self.get(lease_id)
        if lease is None:
            self._numbers += 1
            lease = Lease(
                id=lease_id,
                number=self._numbers,
                owner=owner,
                session=session,
                since=now,
                deadline=now + self.seconds,
            )
            self[lease_id] = self._by_number[lease.number] = lease
        batch.leased(chosen, lease.number)
        lease.given.append((batch, chosen))
        lease.num_rows += chosen.num_rows
        return lease

    def renew(self, lease_id: str, uids: list[str], now: float) -> list[str]:
        """Move a lease's deadline; returns the uids that it does not hold any more."""
        lease = self.get(lease_id)
        if lease is None:
            return list(uids)
        lease.deadline = now + self.seconds
        self.move_to_end(lease_id)
        if len(uids) == lease.num_rows and not self._left_some(lease):
            return []
        held = set(lease.uids())
        return [uid for uid in uids if uid not in held]

    def leave(self, part: Part, numbers: Array) -> None:
        """Rows are held no more; a lease without rows ends."""
        held = part.rows["lease"][numbers]
        if len(held) and (held == held[0]).all():
            self._less(int(held[0]), len(held))
            return
        for number, count in zip(*np.unique(held, return_counts=True), strict=True):
            self._less(int(number), int(count))

    def _less(self, number: int, rows: int) -> None:
        lease = self._by_number.get(number)
        if lease is not None:
            lease.num_rows -= rows
            if not lease.num_rows:
                del self[lease.id], self._by_number[number]

    def of(self, owner: str, session: str | None) -> list[Lease]:
        """Those of an owner, or of one of its processes."""
        return [
            lease
            for lease in self.values()
            if lease.owner == owner and session in (None, lease.session)
        ]

    def late(self, now: float) -> list[Lease]:
        """Those whose deadline has passed, which count as expired from now on."""
        late = list(takewhile(lambda lease: lease.deadline <= now, self.values()))
        self.expired += len(late)
        return late

    def next_deadline(self) -> float | None:
        """When the first one expires."""
        first = next(iter(self.values()), None)
        return None if first is None else first.deadline

    def holders(self, batch: str) -> dict[str, int]:
        """Rows of the batch that each owner holds; owners without any are left out."""
        counts: dict[str, int] = {}
        for lease in self.values():
            for held, _, numbers in lease.held():
                if held.name == batch:
                    counts[lease.owner] = counts.get(lease.owner, 0) + len(numbers)
        return counts

    def _left_some(self, lease: Lease) -> bool:
        return lease.num_rows < sum(chosen.num_rows for _, chosen in lease.given)
