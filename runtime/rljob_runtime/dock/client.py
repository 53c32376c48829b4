"""The dock's client: what workers call to put, claim, read, write and acknowledge rows.

Synchronous and for one thread; a second thread renews the leases. Every wait has a deadline and
every error says what was waited for. Data goes straight to and from the warehouses.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.access import DockAccess
from rljob_runtime.dock.clients.claimed import rows_of
from rljob_runtime.dock.clients.holders import naming_holders
from rljob_runtime.dock.clients.keeper import LeaseKeeper
from rljob_runtime.dock.clients.put import puts_of
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import Claim, NewRow, RowMeta, Share
from rljob_runtime.dock.stats import RoomWaits
from rljob_runtime.dock.wire import messages
from rljob_runtime.dock.wire.frames import Message
from rljob_runtime.dock.wire.messages import (
    GiveBack,
    HeldLease,
    Renew,
    Request,
    Written,
)
from rljob_runtime.errors import DockRefused

__all__ = ["DockAddress", "DockClient"]

A = TypeVar("A", bound=Message)


class DockClient(DockAccess):
    """One worker's access to the dock in one state.

    address: where the dock is, or a function that says so at each (re)connection. state: whose
    controller is asked; one without a controller may put rows and read statistics. owner: the
    worker's name in errors and in `owner_gone`. timeout_seconds: for a read, write or lookup;
    full_timeout_seconds: how long a write or put may wait for room. shared_memory: whether to read
    from the memory of warehouses on this machine; default: as the address says.
    """

    def __init__(
        self,
        address: DockAddress | Callable[[], DockAddress],
        *,
        state: str,
        owner: str,
        timeout_seconds: float = 60.0,
        full_timeout_seconds: float = 300.0,
        shared_memory: str | None = None,
    ) -> None:
        super().__init__(
            address, owner=owner, timeout_seconds=timeout_seconds, shared_memory=shared_memory
        )
        self.state = state
        self._full_timeout = full_timeout_seconds
        self._requests = itertools.count(1)
        self._keeper: LeaseKeeper | None = None

    def close(self) -> None:
        """Disconnect. Rows that are still claimed go back at once."""
        if self._keeper is not None:
            self._keeper.close()
        super().close()

    def put_rows(
        self,
        batch: str,
        rows: Sequence[NewRow],
        total: int,
        *,
        states: Sequence[str] | None = None,
        timeout_seconds: float | None = None,
    ) -> int:
        """Put new rows; repeated calls change nothing. Returns how many were new.

        total: rows of the whole batch, over all calls. states: those that its rows pass, by default
        all that have a controller. A group's rows go into one call. Waits while a warehouse is full.
        Raises DockFull, DockRefused, DockLost (the batch was dropped), DockTimeout.
        """
        passed = list(self._find().controllers if states is None else states)
        timeout = self._full_timeout if timeout_seconds is None else timeout_seconds
        transports = self._connections.transports
        puts = puts_of(rows, len(transports), self._connections.chunk_bytes)
        room = RoomWaits()

        def put(warehouse: int) -> int:
            stored = 0
            for part in puts[warehouse]:
                answer = transports[warehouse].put_rows(
                    batch, part, total=total, states=passed, timeout_seconds=timeout
                )
                stored += answer.stored
                room.add(warehouse, answer.waited)
            return stored

        with self._traffic.transferring(), naming_holders(self._connections):
            stored = sum(self._connections.each(put, puts))
        self._traffic.waited(room.waits())
        self._traffic.rows += stored
        self._traffic.bytes_written += sum(
            column.num_bytes
            for parts in puts.values()
            for part in parts
            for column in (*part.columns.values(), *part.group_columns.values())
        )
        return stored

    def claim(
        self,
        batch: str,
        *,
        limit: int | None = None,
        whole_groups: bool = False,
        share: tuple[int, int] | Share | None = None,
        min_version: int | None = None,
        timeout_seconds: float,
    ) -> Claim:
        """Lease rows of the batch that are ready for this state; waits until there are some.

        limit: rows at most. whole_groups: only groups of which every row is ready (all rows of a
        group; at least one group even when it is larger than the limit). share=(rank, of): exactly
        the groups with number % of == rank, once all are ready, in order of (group, sample); with a
        limit, the next of these groups that this state has not been given, as far as they are ready,
        whether or not all of the batch was put.
        Share(rank, of, window): groups of nearly the same length as other ranks', as many of each
        `window` groups; known once all rows of a window are ready.
        `done` (then without rows): the state has acknowledged all of the batch, or of the share.
        min_version: of the weights; where a row is older, none is given and DockStale says so.
        Raises DockTimeout saying what is missing, DockLost, DockStale, DockRefused.
        """
        if self._keeper is None:
            role = self._controller()
            self._keeper = LeaseKeeper(role=role, find=self._find, identity=self._identity)
        message = messages.Claim(
            request=str(next(self._requests)),
            batch=batch,
            limit=limit,
            whole_groups=whole_groups,
            share=None if share is None else Share(*share),
            min_version=min_version,
        )
        asked = time.monotonic()
        answer = self._ask(message, timeout_seconds)
        self._traffic.wait_seconds += time.monotonic() - asked
        self._traffic.waited(answer.waited or {})
        lease = answer.lease
        rows = rows_of(answer.rows, lease) if answer.rows is not None else ()
        if rows:
            self._keeper.hold(lease, [row.uid for row in rows])
        return Claim(rows=rows, done=answer.done, lease=lease)

    def write(
        self, rows: Sequence[RowMeta], columns: Mapping[str, Ragged], *, version: int | None = None
    ) -> Written:
        """Store this state's columns of claimed rows, which acknowledges them.

        Each row takes all columns of the first write that comes; later ones are told that they are
        duplicates. version: the weights that made the columns. Rows of one warehouse are stored
        together or not at all; on an error, the same call again is safe. Raises DockFull,
        DockRefused, DockLost, DockTimeout.
        """
        for name, column in columns.items():
            if len(column) != len(rows):
                raise ValueError(f"column {name} has {len(column)} rows, the write {len(rows)}")
        parts: dict[tuple[int, str], list[int]] = {}
        for i, row in enumerate(rows):
            parts.setdefault((row.warehouse, row.lease), []).append(i)

        room = RoomWaits()

        def write(warehouse: int) -> list[Written]:
            results = []
            for (_, lease), part in [p for p in parts.items() if p[0][0] == warehouse]:
                uids = [rows[i].uid for i in part]
                whole = len(part) == len(rows)
                cut = {n: c if whole else c.take(part) for n, c in columns.items()}
                answer = self._connections.transports[warehouse].write(
                    cut,
                    state=self.state,
                    lease=lease,
                    uids=uids,
                    version=version,
                    timeout_seconds=self._full_timeout,
                )
                results.append(answer)
                room.add(warehouse, answer.waited)
                self._release(lease, uids)
            return results

        with self._traffic.transferring(), naming_holders(self._connections):
            groups = self._connections.each(write, dict.fromkeys(w for w, _ in parts))
        self._traffic.waited(room.waits())
        results = [result for group in groups for result in group]
        stored = sum(result.stored for result in results)
        self._traffic.rows += stored
        self._traffic.bytes_written += sum(column.values.nbytes for column in columns.values())
        return Written(
            stored=stored,
            duplicates=tuple(uid for result in results for uid in result.duplicates),
            foreign=tuple(uid for result in results for uid in result.foreign),
        )

    def acknowledge(self, rows: Sequence[RowMeta]) -> None:
        """Say that a state without columns is done with the rows; repeated calls change nothing.

        Raises DockRefused when another claim of a row was acknowledged first: what this worker did
        with that row must not count.
        """
        written = self.write(rows, {})
        if written.foreign:
            raise DockRefused(
                f"{len(written.foreign)} of {len(rows)} rows were acknowledged under another lease "
                f"of state {self.state} (the first is {written.foreign[0]}): this claim expired"
            )

    def give_back(self, rows: Sequence[RowMeta]) -> None:
        """Return claimed rows unprocessed; others may claim them at once."""
        for lease in dict.fromkeys(row.lease for row in rows):
            uids = [row.uid for row in rows if row.lease == lease]
            self._release(lease, uids)
            self._ask(GiveBack(lease=lease, uids=uids))

    def renew(self, lease: str, rows: Iterable[RowMeta]) -> tuple[str, ...]:
        """Move a lease's deadline now (a thread does it by itself); returns uids that are lost."""
        held = HeldLease(lease=lease, uids=[row.uid for row in rows])
        return tuple(self._ask(Renew(leases=[held])).lost)

    def _controller(self) -> str:
        controllers = self._find().controllers
        if self.state not in controllers:
            raise DockRefused(
                f"state {self.state!r} has no controller; those of this dock are {[*controllers]}"
            )
        return f"controller/{self.state}"

    def _ask(self, message: Request[A], timeout_seconds: float | None = None) -> A:
        return self._connections.ask(self._controller(), message, timeout_seconds)

    def _release(self, lease: str, uids: list[str]) -> None:
        if self._keeper is not None:
            self._keeper.release(lease, uids)
