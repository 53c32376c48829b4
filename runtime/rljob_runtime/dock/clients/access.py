"""What needs no state of one's own in a dock: reading rows, statistics, dropping batches.

`DockClient` adds what a state's worker does.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.assembly import by_warehouse, copied, viewed
from rljob_runtime.dock.clients.connections import Connections
from rljob_runtime.dock.clients.transport import Found
from rljob_runtime.dock.clients.warehouse_channel import DataPath, SharedMemory
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.stats import DockStats, RowCounts, Traffic
from rljob_runtime.dock.wire.channel import Identity
from rljob_runtime.dock.wire.messages import AskController, AskWarehouse, DropBatch, OwnerGone
from rljob_runtime.errors import DockError, DockLost, DockTimeout


class DockAccess:
    """Connections to all servers of a dock; a context manager. Arguments as DockClient's."""

    def __init__(
        self,
        address: DockAddress | Callable[[], DockAddress],
        *,
        owner: str,
        timeout_seconds: float,
        shared_memory: str | None,
    ) -> None:
        self.owner = owner
        self._find = address if callable(address) else lambda: address
        self._timeout = timeout_seconds
        self._identity = Identity(owner=owner, session=secrets.token_hex(8))
        mode = self._find().shared_memory if shared_memory is None else shared_memory
        self._connections = Connections(
            self._find,
            identity=self._identity,
            timeout_seconds=timeout_seconds,
            shared_memory=SharedMemory(mode),
        )
        self._traffic = Traffic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._connections.close()

    def read(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> dict[str, Ragged]:
        """Columns of the rows, in their order; a group's column is there once a row.

        Raises DockLost when a row is gone, DockRefused when it lacks a column, DockTimeout.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            with self._traffic.transferring():
                found = self._find_rows(rows, columns, checked=True)
                copies = copied(rows, columns, found)
                whole = self._release_views(found)
            if whole:
                self._traffic.read(copies)
                return copies
            if time.monotonic() > deadline:
                raise DockTimeout(f"{len(rows)} rows could not be copied within their pins")

    @contextlib.contextmanager
    def view(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> Iterator[dict[str, Column]]:
        """As read, without a copy where a warehouse is on this machine: row by row always, and as one
        array (Ragged) where the rows lie behind each other. Such values cannot be written to, and must
        not be looked at after the end.

        Raises DockLost at the end when they may have changed meanwhile: the view was held for longer
        than a lease, or its warehouse was lost.
        """
        with self._traffic.transferring():
            found = self._find_rows(rows, columns, checked=False)
        whole = False
        try:
            views = viewed(rows, columns, found)
            self._traffic.read(views)
            yield views
            whole = True
        finally:
            held = self._release_views(found)
            if whole and not held:
                raise DockLost(
                    f"a view of {len(rows)} rows was held for longer than a lease, or its warehouse "
                    "was lost: its bytes may have changed; look at them for a shorter time, or read"
                )

    def owner_gone(self, owner: str) -> int:
        """Tell every controller that an owner is dead; returns how many rows went back."""
        ask, roles = self._connections.ask, self._connections.controller_roles
        return sum(ask(role, OwnerGone(owner=owner)).returned for role in roles)

    def drop_batch(self, batch: str) -> int:
        """Free all rows of a batch for good, e.g. before it starts over under another name.

        Returns rows freed. Claims that wait for it end with DockLost.
        """
        ask, roles = self._connections.ask, self._connections.warehouse_roles
        return sum(ask(role, DropBatch(batch=batch)).freed for role in roles)

    def stats(self) -> DockStats:
        """What every server holds and has refused."""
        to = self._connections
        return DockStats.from_answers(
            [to.ask(role, AskWarehouse()) for role in to.warehouse_roles],
            [to.ask(role, AskController()) for role in to.controller_roles],
        )

    def rows_by_state(self, *, timeout_seconds: float) -> dict[str, RowCounts]:
        """What each controller says of its rows; costs them microseconds. Raises DockError."""
        ask, roles = self._connections.ask, self._connections.controller_roles
        return {
            role.partition("/")[2]: RowCounts.from_answer(
                ask(role, AskController(), timeout_seconds)
            )
            for role in roles
        }

    @property
    def data_paths(self) -> dict[int, DataPath]:
        """How this client reads from each warehouse that it was connected to."""
        return self._connections.data_paths

    def take_traffic(self) -> Traffic:
        """What this client did since the last call."""
        traffic, self._traffic = self._traffic, Traffic()
        paths = self.data_paths.values()
        traffic.shared_paths = sum(path.shared for path in paths)
        traffic.tcp_paths = len(paths) - traffic.shared_paths
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

    def _find_rows(
        self, rows: Sequence[RowMeta], columns: Sequence[str], *, checked: bool
    ) -> dict[int, Found]:
        """What each warehouse answers. On an error, what others answered is released."""
        parts = by_warehouse(rows)
        found: dict[int, Found] = {}

        def read(warehouse: int) -> None:
            uids = [rows[i].uid for i in parts[warehouse]]
            found[warehouse] = self._connections.transports[warehouse].read(
                uids, columns, checked=checked, timeout_seconds=self._timeout
            )

        try:
            self._connections.each(read, parts)
        except BaseException:
            self._release_views(found)
            raise
        return found

    def _release_views(self, found: Mapping[int, Found]) -> bool:
        """Release what the warehouses keep for us; True when it was as written until now."""
        pins = [(self._connections.transports[w], f.pin) for w, f in found.items() if f.pin]
        whole = all(transport.holds(pin) for transport, pin in pins)
        for transport, pin in pins:
            transport.release(pin)
        return whole
