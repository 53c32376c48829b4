"""The dock's client: what workers call to put, claim, read, write and acknowledge rows.

Synchronous and for one thread; a second thread renews the leases. Every wait has a deadline and
every error says what was waited for. Data goes straight to and from the warehouses.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

import numpy as np

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.channel import Channel, Identity
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.frames import Fields, Kind
from rljob_runtime.dock.keeper import LeaseKeeper
from rljob_runtime.dock.put import puts_of
from rljob_runtime.dock.rows import Claim, NewRow, RowMeta, Written
from rljob_runtime.dock.stats import DockStats, Traffic
from rljob_runtime.dock.transport import TcpTransport, Transport
from rljob_runtime.errors import DockError, DockRefused

__all__ = ["DockAddress", "DockClient"]

T = TypeVar("T")


class DockClient:
    """One worker's access to the dock in one state.

    address: where the dock is, or a function that says so at each (re)connection. state: whose
    controller is asked; one without a controller may put rows and read statistics. owner: the
    worker's name in errors and in `owner_gone`. timeout_seconds: for a read, write or lookup;
    full_timeout_seconds: how long a write or put may wait for room.
    """

    def __init__(
        self,
        address: DockAddress | Callable[[], DockAddress],
        *,
        state: str,
        owner: str,
        timeout_seconds: float = 60.0,
        full_timeout_seconds: float = 300.0,
    ) -> None:
        self.state = state
        self.owner = owner
        self._find = address if callable(address) else lambda: address
        self._timeout, self._full_timeout = timeout_seconds, full_timeout_seconds
        self._identity = Identity(owner=owner, session=secrets.token_hex(8))
        self._requests = itertools.count(1)
        self._channels: dict[str, Channel] = {}
        self._capacity_bytes = 1 << 62
        self._num_warehouses = len(self._find().warehouses)
        self._transports: list[Transport] = [
            TcpTransport(self._channel(f"warehouse/{i}")) for i in range(self._num_warehouses)
        ]
        self._keeper: LeaseKeeper | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._traffic = Traffic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. Rows that are still claimed go back at once."""
        if self._keeper is not None:
            self._keeper.close()
        if self._pool is not None:
            self._pool.shutdown()
        for channel in self._channels.values():
            channel.close()

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
        puts = puts_of(rows, self._num_warehouses, self._chunk_bytes)
        head = {"batch": batch, "total": total, "states": passed}

        def put(warehouse: int) -> int:
            stored = 0
            for part in puts[warehouse]:
                answer = self._transports[warehouse].put_rows(
                    {**head, "rows": part.rows},
                    part.columns,
                    part.group_columns,
                    timeout_seconds=timeout,
                )
                stored += answer.integer("stored")
            return stored

        stored = sum(self._each(put, puts))
        self._traffic.rows += stored
        self._traffic.bytes_written += sum(
            column.values.nbytes
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
        share: tuple[int, int] | None = None,
        timeout_seconds: float,
    ) -> Claim:
        """Lease rows of the batch that are ready for this state; waits until there are some.

        limit: rows at most. whole_groups: only groups of which every row is ready (all rows of a
        group; at least one group even when it is larger than the limit). share=(rank, of): exactly
        the groups with number % of == rank, once all are ready, in order of (group, sample).
        `done` (then without rows): the state has acknowledged all of the batch, or of the share.
        Raises DockTimeout saying what is missing, DockLost, DockRefused.
        """
        if self._keeper is None:
            role = self._controller()
            self._keeper = LeaseKeeper(role=role, find=self._find, identity=self._identity)
        header = {
            "request": str(next(self._requests)),
            "batch": batch,
            "limit": limit,
            "whole_groups": whole_groups,
            "share": share,
        }
        asked = time.monotonic()
        answer = self._ask(Kind.CLAIM, header, timeout_seconds=timeout_seconds)
        self._traffic.wait_seconds += time.monotonic() - asked
        lease = answer.text("lease")
        rows = tuple(_row_meta(item, lease) for item in answer.items("rows"))
        if rows:
            self._keeper.hold(lease, [row.uid for row in rows])
        return Claim(rows=rows, done=answer.flag("done"), lease=lease)

    def read(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> dict[str, Ragged]:
        """Columns of the rows, in their order; a group's column is there once a row.

        Raises DockLost when a row is gone, DockRefused when it lacks a column, DockTimeout.
        """
        parts = _by_warehouse(rows)

        sizes: list[int] = []

        def read(warehouse: int) -> dict[str, Ragged]:
            mine = [rows[i] for i in parts[warehouse]]
            found = self._transports[warehouse].read(
                [row.uid for row in mine], columns, timeout_seconds=self._timeout
            )
            sizes.extend(column.values.nbytes for column, _ in found.values())
            return {name: _per_row(mine, *column) for name, column in found.items()}

        found = self._each(read, parts)
        self._traffic.bytes_read += sum(sizes)
        order = np.argsort([i for part in parts.values() for i in part], kind="stable").tolist()
        return {name: _merged([part[name] for part in found], order) for name in columns if found}

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

        def write(warehouse: int) -> list[Written]:
            results = []
            for (_, lease), part in [p for p in parts.items() if p[0][0] == warehouse]:
                uids = [rows[i].uid for i in part]
                whole = len(part) == len(rows)
                cut = {n: c if whole else c.take(part) for n, c in columns.items()}
                header = {"state": self.state, "lease": lease, "uids": uids, "version": version}
                answer = self._transports[warehouse].write(
                    header, cut, timeout_seconds=self._full_timeout
                )
                results.append(_written(answer))
                self._release(lease, uids)
            return results

        groups = self._each(write, dict.fromkeys(w for w, _ in parts))
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
            self._ask(Kind.GIVE_BACK, {"lease": lease, "uids": uids})

    def renew(self, lease: str, rows: Iterable[RowMeta]) -> tuple[str, ...]:
        """Move a lease's deadline now (a thread does it by itself); returns uids that are lost."""
        item = {"lease": lease, "uids": [row.uid for row in rows]}
        return tuple(self._ask(Kind.RENEW, {"leases": [item]}).texts("lost"))

    def owner_gone(self, owner: str) -> int:
        """Tell every controller that an owner is dead; returns how many rows went back."""
        roles = [f"controller/{state}" for state in self._find().controllers]
        gone = [
            self._channel(role)
            .request(Kind.OWNER_GONE, {"owner": owner}, timeout_seconds=self._timeout)
            .fields.integer("returned")
            for role in roles
        ]
        return sum(gone)

    def drop_batch(self, batch: str) -> int:
        """Free all rows of a batch for good, e.g. before it starts over under another name.

        Returns rows freed. Claims that wait for it end with DockLost.
        """
        freed = [
            self._channel(f"warehouse/{i}")
            .request(Kind.DROP_BATCH, {"batch": batch}, timeout_seconds=self._timeout)
            .fields.integer("freed")
            for i in range(self._num_warehouses)
        ]
        return sum(freed)

    def stats(self) -> DockStats:
        """What every server holds and has refused."""
        roles = [f"warehouse/{i}" for i in range(self._num_warehouses)]
        roles += [f"controller/{state}" for state in self._find().controllers]
        answers = {
            role: self._channel(role).request(Kind.STATS, {}, timeout_seconds=self._timeout).fields
            for role in roles
        }
        return DockStats.from_answers(answers)

    def take_traffic(self) -> Traffic:
        """What this client did since the last call."""
        traffic, self._traffic = self._traffic, Traffic()
        return traffic

    def assert_empty(self, batch: str | None = None) -> None:
        """Raise DockError naming the states that left rows (of the batch) in the dock."""
        stats = self.stats()
        rows = stats.rows if batch is None else stats.batches.get(batch, 0)
        if rows:
            waiting = {s: n for s, n in stats.unacknowledged.items() if n}
            raise DockError(
                f"{rows} rows of {batch or 'all batches'} are still in the dock; rows that each "
                f"state has not acknowledged: {waiting}"
            )

    @property
    def _chunk_bytes(self) -> int:
        """Bytes of new rows in one message, small against a warehouse."""
        if self._capacity_bytes == 1 << 62:
            self._channel("warehouse/0").request(Kind.STATS, {}, timeout_seconds=self._timeout)
        return max(1, min(8 << 20, self._capacity_bytes // 16))

    def _welcomed(self, channel: Channel, welcome: Fields) -> None:
        if welcome.has("capacity"):
            self._capacity_bytes = min(self._capacity_bytes, welcome.integer("capacity"))

    def _channel(self, role: str) -> Channel:
        if role not in self._channels:
            self._channels[role] = Channel(
                role=role, find=self._find, identity=self._identity, on_connect=self._welcomed
            )
        return self._channels[role]

    def _controller(self) -> str:
        controllers = self._find().controllers
        if self.state not in controllers:
            raise DockRefused(
                f"state {self.state!r} has no controller; those of this dock are {[*controllers]}"
            )
        return f"controller/{self.state}"

    def _ask(
        self, kind: Kind, header: dict[str, Any], timeout_seconds: float | None = None
    ) -> Fields:
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        channel = self._channel(self._controller())
        return channel.request(kind, header, timeout_seconds=timeout).fields

    def _release(self, lease: str, uids: list[str]) -> None:
        if self._keeper is not None:
            self._keeper.release(lease, uids)

    def _each(self, call: Callable[[int], T], warehouses: Iterable[int]) -> list[T]:
        """Call for each warehouse, in parallel when there are several."""
        indices = list(warehouses)
        if len(indices) < 2:
            return [call(index) for index in indices]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(16, self._num_warehouses), "dock-client")
        return list(self._pool.map(call, indices))


def _row_meta(item: Any, lease: str) -> RowMeta:
    uid, batch, group, group_index, group_size, sample, version, warehouse, lengths, attempt = item
    return RowMeta(
        uid=uid,
        batch=batch,
        group=group,
        group_index=group_index,
        group_size=group_size,
        sample=sample,
        version=version,
        warehouse=warehouse,
        lengths=lengths,
        lease=lease,
        attempt=attempt,
    )


def _written(answer: Fields) -> Written:
    return Written(
        stored=answer.integer("stored"),
        duplicates=tuple(answer.texts("duplicates")),
        foreign=tuple(answer.texts("foreign")),
    )


def _by_warehouse(rows: Sequence[RowMeta]) -> dict[int, list[int]]:
    parts: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        parts.setdefault(row.warehouse, []).append(i)
    return parts


def _per_row(rows: Sequence[RowMeta], column: Ragged, of_groups: bool) -> Ragged:
    if not of_groups:
        return column
    groups = dict.fromkeys((row.batch, row.group) for row in rows)
    place = {key: i for i, key in enumerate(groups)}
    return column.take([place[row.batch, row.group] for row in rows])


def _merged(parts: list[Ragged], order: list[int]) -> Ragged:
    if len(parts) == 1:
        return parts[0]
    return Ragged.concatenate(parts).take(order)
