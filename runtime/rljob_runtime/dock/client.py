"""The dock's client, with which workers put, claim, read, write and acknowledge rows.

It is synchronous and for one thread; a second thread renews the leases. Every wait has a deadline, and every
error names the cause of the wait. Data is sent directly to and from the warehouses.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.access import DockAccess
from rljob_runtime.dock.clients.claimed import decode_rows
from rljob_runtime.dock.clients.holders import add_holders_to_errors
from rljob_runtime.dock.clients.keeper import LeaseKeeper
from rljob_runtime.dock.clients.put import build_puts
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import NewRow, RowClaim, RowMeta, Share
from rljob_runtime.dock.stats import RoomWaits
from rljob_runtime.dock.wire import messages
from rljob_runtime.dock.wire.frames import DockMessage
from rljob_runtime.dock.wire.messages import (
    GiveBack,
    LeasedRows,
    Renew,
    Request,
    WriteResult,
)
from rljob_runtime.errors import DockRefused

__all__ = ["DockAddress", "DockClient"]

A = TypeVar("A", bound=DockMessage)


class DockClient(DockAccess):
    """One worker's access to the dock in one state.

    address: where the dock is, or a function that returns its address at each (re)connection. state: the
    state whose controller grants claims; a state without a controller may put rows and read statistics.
    owner: the worker's name in errors and in `owner_gone`. timeout_seconds: for a read, write or lookup.
    full_timeout_seconds: maximum time that a write or put waits for room. shared_memory: whether to read from
    the memory of warehouses on this machine; default: the address's setting.
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
        """Disconnect. Rows that are still claimed are returned immediately."""
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
        """Put new rows and return how many were new; repeated calls change nothing.

        total: rows of the whole batch, over all calls. states: those that its rows pass, by default all that
        have a controller. The rows of a group go into one call. Waits while a warehouse is full. Raises
        DockFull, DockRefused, DockLost (the batch was dropped), DockTimeout.
        """
        row_states = list(self._resolve().controllers if states is None else states)
        timeout = self._full_timeout if timeout_seconds is None else timeout_seconds
        transports = self._connections.transports
        puts = build_puts(rows, len(transports), self._connections.chunk_bytes)
        room = RoomWaits()

        def put(warehouse: int) -> int:
            stored = 0
            for chunk in puts[warehouse]:
                answer = transports[warehouse].put_rows(
                    batch, chunk, total=total, states=row_states, timeout_seconds=timeout
                )
                stored += answer.stored
                room.add(warehouse, answer.waited)
            return stored

        with self._traffic.transferring(), add_holders_to_errors(self._connections):
            stored = sum(self._connections.each(put, puts))
        self._traffic.count_waits(room.waits())
        self._traffic.rows += stored
        self._traffic.bytes_written += sum(
            column.num_bytes
            for chunks in puts.values()
            for chunk in chunks
            for column in (*chunk.columns.values(), *chunk.group_columns.values())
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
    ) -> RowClaim:
        """Lease rows of the batch that are ready for this state; wait until there are some.

        limit: maximum number of rows. whole_groups: only groups of which every row is ready, with all their
        rows; at least one group even where it is larger than the limit.

        share=(rank, of): exactly the groups with index % of == rank, once all are ready, in order of (group,
        sample). With a limit: the next of these groups that were not granted to this state, as far as they
        are ready. The full batch need not be put. Share(rank, of, window): groups of nearly the same
        length as other ranks', as many of each `window` groups; known once all rows of a window are ready.

        `done` (then without rows): the state has acknowledged the full batch, or share. min_version: of the
        weights; where a row is older, no row is granted and DockStale is raised. Raises DockTimeout, which
        names what is missing, DockLost, DockStale, DockRefused.
        """
        if self._keeper is None:
            role = self._controller()
            self._keeper = LeaseKeeper(role=role, find=self._resolve, identity=self._identity)
        message = messages.ClaimRows(
            request=str(next(self._requests)),
            batch=batch,
            limit=limit,
            whole_groups=whole_groups,
            share=None if share is None else Share(*share),
            min_version=min_version,
        )
        started_s = time.monotonic()
        answer = self._ask(message, timeout_seconds)
        self._traffic.wait_seconds += time.monotonic() - started_s
        self._traffic.count_waits(answer.waited or {})
        lease = answer.lease
        rows = decode_rows(answer.rows, lease) if answer.rows is not None else ()
        if rows:
            self._keeper.hold(lease, [row.uid for row in rows])
        return RowClaim(rows=rows, done=answer.done, lease=lease)

    def write(
        self, rows: Sequence[RowMeta], columns: Mapping[str, Ragged], *, version: int | None = None
    ) -> WriteResult:
        """Store this state's columns of claimed rows, which acknowledges them.

        Each row takes all columns of the first write that arrives; later ones are answered as duplicates.
        version: of the weights that produced the columns. Rows of one warehouse are stored together or not at
        all; after an error, the same call can be repeated safely. Raises DockFull, DockRefused, DockLost,
        DockTimeout.
        """
        for name, column in columns.items():
            if len(column) != len(rows):
                raise ValueError(f"column {name} has {len(column)} rows, the write {len(rows)}")
        indices: dict[tuple[int, str], list[int]] = {}
        for i, row in enumerate(rows):
            indices.setdefault((row.warehouse, row.lease), []).append(i)

        room = RoomWaits()

        def write(warehouse: int) -> list[WriteResult]:
            results = []
            for (_, lease), members in [p for p in indices.items() if p[0][0] == warehouse]:
                uids = [rows[i].uid for i in members]
                is_complete = len(members) == len(rows)
                row_columns = {n: c if is_complete else c.take(members) for n, c in columns.items()}
                answer = self._connections.transports[warehouse].write(
                    row_columns,
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

        with self._traffic.transferring(), add_holders_to_errors(self._connections):
            groups = self._connections.each(write, dict.fromkeys(w for w, _ in indices))
        self._traffic.count_waits(room.waits())
        results = [result for group in groups for result in group]
        stored = sum(result.stored for result in results)
        self._traffic.rows += stored
        self._traffic.bytes_written += sum(column.values.nbytes for column in columns.values())
        return WriteResult(
            stored=stored,
            duplicates=tuple(uid for result in results for uid in result.duplicates),
            foreign=tuple(uid for result in results for uid in result.foreign),
        )

    def acknowledge(self, rows: Sequence[RowMeta]) -> None:
        """Acknowledge the rows for a state without columns; repeated calls change nothing.

        Raises DockRefused when another claim of a row was acknowledged first: the result that this worker
        computed for that row must not count.
        """
        written = self.write(rows, {})
        if written.foreign:
            raise DockRefused(
                f"{len(written.foreign)} of {len(rows)} rows were acknowledged under another lease "
                f"of state {self.state} (the first is {written.foreign[0]}): this claim expired"
            )

    def give_back(self, rows: Sequence[RowMeta]) -> None:
        """Return claimed rows unprocessed; others may claim them immediately."""
        for lease in dict.fromkeys(row.lease for row in rows):
            uids = [row.uid for row in rows if row.lease == lease]
            self._release(lease, uids)
            self._ask(GiveBack(lease=lease, uids=uids))

    def renew(self, lease: str, rows: Iterable[RowMeta]) -> tuple[str, ...]:
        """Extend a lease's deadline now (a thread also does it); return uids that are lost."""
        leased = LeasedRows(lease=lease, uids=[row.uid for row in rows])
        return tuple(self._ask(Renew(leases=[leased])).lost)

    def _controller(self) -> str:
        controllers = self._resolve().controllers
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
