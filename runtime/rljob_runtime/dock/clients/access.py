"""Access to a dock that needs no state: reading rows, statistics, dropping batches.

`DockClient` adds the operations of a state's worker.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.assembly import by_warehouse, copy_columns, view_columns
from rljob_runtime.dock.clients.connections import Connections
from rljob_runtime.dock.clients.transport import ReadResult
from rljob_runtime.dock.clients.warehouse_channel import DataPath, SharedMemory
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.stats import DockStats, DockTraffic, RowCounts
from rljob_runtime.dock.wire.channel import ClientIdentity
from rljob_runtime.dock.wire.messages import (
    AskControllerStats,
    AskWarehouseStats,
    DropBatch,
    OwnerGone,
)
from rljob_runtime.errors import DockError, DockLost, DockTimeout


class DockAccess:
    """Connections to all servers of a dock; a context manager. Arguments like DockClient's."""

    def __init__(
        self,
        address: DockAddress | Callable[[], DockAddress],
        *,
        owner: str,
        timeout_seconds: float,
        shared_memory: str | None,
    ) -> None:
        self.owner = owner
        self._resolve = address if callable(address) else lambda: address
        self._timeout = timeout_seconds
        self._identity = ClientIdentity(owner=owner, session=secrets.token_hex(8))
        mode = self._resolve().shared_memory if shared_memory is None else shared_memory
        self._connections = Connections(
            self._resolve,
            identity=self._identity,
            timeout_seconds=timeout_seconds,
            shared_memory=SharedMemory(mode),
        )
        self._traffic = DockTraffic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from all servers."""
        self._connections.close()

    def read(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> dict[str, Ragged]:
        """Return columns of the rows, in their order; a group's column is repeated for each of its rows.

        Raises DockLost when a row is gone, DockRefused when it lacks a column, DockTimeout.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            with self._traffic.transferring():
                results = self._read_results(rows, columns, checked=True)
                copies = copy_columns(rows, columns, results)
                intact = self._release_views(results)
            if intact:
                self._traffic.count_reads(copies)
                return copies
            if time.monotonic() > deadline:
                raise DockTimeout(f"{len(rows)} rows could not be copied within their pins")

    @contextlib.contextmanager
    def view(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Read like `read`, without a copy where a warehouse is on this machine.

        Values are always available row by row, and as one array (Ragged) where the rows are contiguous. They
        cannot be written to, and must not be used after the end of the block. Raises DockLost at the end when
        they may have changed meanwhile: the view was open for longer than a lease, or its warehouse was lost.
        """
        with self._traffic.transferring():
            results = self._read_results(rows, columns, checked=False)
        completed = False
        try:
            views = view_columns(rows, columns, results)
            self._traffic.count_reads(views)
            yield views
            completed = True
        finally:
            intact = self._release_views(results)
            if completed and not intact:
                raise DockLost(
                    f"a view of {len(rows)} rows was held for longer than a lease, or its warehouse "
                    "was lost: its bytes may have changed; look at them for a shorter time, or read"
                )

    def owner_gone(self, owner: str) -> int:
        """Notify every controller that an owner is dead; return how many rows were returned."""
        ask, roles = self._connections.ask, self._connections.controller_roles
        return sum(ask(role, OwnerGone(owner=owner)).returned for role in roles)

    def drop_batch(self, batch: str) -> int:
        """Free all rows of a batch for good, e.g. before it starts over under another name.

        Returns the number of rows freed. Claims that wait for it end with DockLost.
        """
        ask, roles = self._connections.ask, self._connections.warehouse_roles
        return sum(ask(role, DropBatch(batch=batch)).freed for role in roles)

    def stats(self) -> DockStats:
        """Return the statistics of every server."""
        connections = self._connections
        return DockStats.from_answers(
            [connections.ask(role, AskWarehouseStats()) for role in connections.warehouse_roles],
            [connections.ask(role, AskControllerStats()) for role in connections.controller_roles],
        )

    def rows_by_state(self, *, timeout_seconds: float) -> dict[str, RowCounts]:
        """Return the row counts of each controller; this costs a controller microseconds. Raises
        DockError."""
        ask, roles = self._connections.ask, self._connections.controller_roles
        return {
            role.partition("/")[2]: RowCounts.from_answer(
                ask(role, AskControllerStats(), timeout_seconds)
            )
            for role in roles
        }

    @property
    def data_paths(self) -> dict[int, DataPath]:
        """The data path to each warehouse that this client was connected to."""
        return self._connections.data_paths

    def take_traffic(self) -> DockTraffic:
        """Return the traffic of this client since the last call."""
        traffic, self._traffic = self._traffic, DockTraffic()
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

    def _read_results(
        self, rows: Sequence[RowMeta], columns: Sequence[str], *, checked: bool
    ) -> dict[int, ReadResult]:
        """Return what each warehouse answers. On an error, the other answers are released."""
        indices = by_warehouse(rows)
        results: dict[int, ReadResult] = {}

        def read(warehouse: int) -> None:
            uids = [rows[i].uid for i in indices[warehouse]]
            results[warehouse] = self._connections.transports[warehouse].read(
                uids, columns, checked=checked, timeout_seconds=self._timeout
            )

        try:
            self._connections.each(read, indices)
        except BaseException:
            self._release_views(results)
            raise
        return results

    def _release_views(self, results: Mapping[int, ReadResult]) -> bool:
        """Release the pins of these results; return True when the data did not change until now."""
        pins = [(self._connections.transports[w], f.pin) for w, f in results.items() if f.pin]
        intact = all(transport.holds(pin) for transport, pin in pins)
        for transport, pin in pins:
            transport.release(pin)
        return intact
