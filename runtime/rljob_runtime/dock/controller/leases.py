"""Who holds which rows of one controller's state, and until when. Pure; the controller's ledger asks it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from rljob_runtime.dock.controller.entries import Entry


@dataclass(slots=True, kw_only=True)
class Lease:
    """Rows that one owner holds since `since`, until `deadline` or until they are acknowledged."""

    id: str
    owner: str
    session: str
    since: float
    deadline: float
    rows: dict[str, Entry] = field(default_factory=dict)


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

    def next_id(self) -> str:
        """For a new lease."""
        self._given += 1
        return f"{self.epoch}-{self._given}"

    def foreign(self, lease_id: str) -> bool:
        """True for one that another start of the controller gave."""
        return not lease_id.startswith(f"{self.epoch}-")

    def hold(
        self, lease_id: str, *, owner: str, session: str, entries: Iterable[Entry], now: float
    ) -> Lease:
        """Give rows to the owner under this lease, new or not."""
        lease = self.get(lease_id)
        if lease is None:
            deadline = now + self.seconds
            lease = Lease(id=lease_id, owner=owner, session=session, since=now, deadline=deadline)
            self[lease_id] = lease
        lease.rows |= {entry.uid: entry for entry in entries}
        return lease

    def renew(self, lease_id: str, uids: Sequence[str], now: float) -> list[str]:
        """Move a lease's deadline; returns the uids that it does not hold any more."""
        lease = self.get(lease_id)
        if lease is None:
            return list(uids)
        lease.deadline = now + self.seconds
        self.move_to_end(lease_id)
        return [uid for uid in uids if uid not in lease.rows]

    def leave(self, entry: Entry) -> None:
        """The row is held no more; a lease without rows ends."""
        lease = self[entry.lease] if entry.lease is not None else None
        if lease is not None:
            del lease.rows[entry.uid]
            if not lease.rows:
                del self[lease.id]

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
            held = sum(entry.batch == batch for entry in lease.rows.values())
            counts[lease.owner] = counts.get(lease.owner, 0) + held
        return {owner: count for owner, count in counts.items() if count}
