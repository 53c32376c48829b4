"""The dock's client for asyncio: the same calls as `DockClient`'s, to be awaited.

Each client has one thread for its requests, so that the event loop never blocks. A cancelled call continues
there until its answer or deadline; rows that a cancelled claim still gets are returned.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.rows import NewRow, RowClaim, RowMeta
from rljob_runtime.dock.stats import DockStats
from rljob_runtime.dock.wire.messages import WriteResult

T = TypeVar("T")


class AsyncDockClient:
    """One worker's access to the dock in one state; an asynchronous context manager.

    Arguments and errors are those of DockClient. Calls of one client are carried out one after the other: a
    worker that reads while it waits for a claim needs two clients.
    """

    def __init__(
        self,
        address: DockAddress | Callable[[], DockAddress],
        *,
        state: str,
        owner: str,
        **options: Any,
    ) -> None:
        self._client = DockClient(address, state=state, owner=owner, **options)
        self._thread = ThreadPoolExecutor(1, "dock-requests")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect after the current call. Rows that are still claimed are returned."""
        await self._call(self._client.close)
        self._thread.shutdown(wait=False)

    async def put_rows(self, batch: str, rows: Sequence[NewRow], total: int, **options: Any) -> int:
        """Put new rows; see `DockClient.put_rows`."""
        return await self._call(self._client.put_rows, batch, rows, total, **options)

    async def claim(self, batch: str, **options: Any) -> RowClaim:
        """Lease rows of the batch; see `DockClient.claim`."""
        pending = self._thread.submit(self._client.claim, batch, **options)
        try:
            return await asyncio.wrap_future(pending)
        except asyncio.CancelledError:
            self._thread.submit(self._return, pending)
            raise

    async def claims(self, batch: str, **options: Any) -> AsyncIterator[RowClaim]:
        """Yield claim after claim until the state has acknowledged the full batch."""
        while not (claim := await self.claim(batch, **options)).done:
            yield claim

    async def read(self, rows: Sequence[RowMeta], columns: Sequence[str]) -> dict[str, Ragged]:
        """Read columns of the rows; see `DockClient.read`."""
        return await self._call(self._client.read, rows, columns)

    @contextlib.asynccontextmanager
    async def view(
        self, rows: Sequence[RowMeta], columns: Sequence[str]
    ) -> AsyncIterator[dict[str, Column]]:
        """View columns of the rows; see `DockClient.view`."""
        blocking_view = self._client.view(rows, columns)

        async def leave(*exc: Any) -> bool | None:
            return await self._call(blocking_view.__exit__, *exc)

        async with contextlib.AsyncExitStack() as stack:
            views = await self._call(blocking_view.__enter__)
            stack.push_async_exit(leave)
            yield views

    async def write(
        self, rows: Sequence[RowMeta], columns: Mapping[str, Ragged], **options: Any
    ) -> WriteResult:
        """Write columns of the rows; see `DockClient.write`."""
        return await self._call(self._client.write, rows, columns, **options)

    async def acknowledge(self, rows: Sequence[RowMeta]) -> None:
        """Acknowledge rows without columns; see `DockClient.acknowledge`."""
        await self._call(self._client.acknowledge, rows)

    async def give_back(self, rows: Sequence[RowMeta]) -> None:
        """Return rows unprocessed; see `DockClient.give_back`."""
        await self._call(self._client.give_back, rows)

    async def drop_batch(self, batch: str) -> int:
        """Free a batch's rows for good; see `DockClient.drop_batch`."""
        return await self._call(self._client.drop_batch, batch)

    async def stats(self) -> DockStats:
        """Return the dock's statistics; see `DockClient.stats`."""
        return await self._call(self._client.stats)

    async def _call(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.wrap_future(self._thread.submit(call, *arguments, **options))

    def _return(self, pending: "Future[RowClaim]") -> None:
        """Return the rows of a cancelled claim."""
        if not pending.cancelled() and pending.exception() is None:
            self._client.give_back(pending.result().rows)
