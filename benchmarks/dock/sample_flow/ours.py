"""rljob's dock, as the benchmark calls it: one warehouse and three states in processes of their own."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.dock.sample_flow.payload import READERS, Array, Column
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.rows import NewRow, RowClaim

WAIT_SECONDS = 120.0


class OurHost:
    """One warehouse of so many bytes."""

    def __init__(self, capacity: int) -> None:
        states = [State(name=name, needs=columns) for name, columns in READERS.items()]
        self._dock = LocalDock(states, capacity=capacity)
        self._dock.__enter__()
        self.address = self._dock.address.to_json()

    def close(self) -> None:
        """See Host."""
        self._dock.close()


class OurSide:
    """See Side."""

    def __init__(self, address: Any) -> None:
        self._address = DockAddress.from_json(address)
        self._clients: dict[str, DockClient] = {}

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> list[NewRow]:
        """A row is a NewRow with views of the caller's arrays."""
        names = list(columns)
        return [
            NewRow(
                uid=f"{batch}/{first + i}",
                group=f"{batch}/{first + i}",
                group_index=first + i,
                columns=dict(zip(names, values, strict=True)),
            )
            for i, values in enumerate(zip(*(c.each() for c in columns.values()), strict=True))
        ]

    def put(self, batch: str, prepared: list[NewRow], *, total: int, states: list[str]) -> None:
        """See Side."""
        self._client("update").put_rows(batch, prepared, total, states=states)

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[RowClaim, int] | None:
        """See Side; waits at the controller."""
        claim = self._client(state).claim(batch, limit=limit, timeout_seconds=WAIT_SECONDS)
        return claim, len(claim.rows)

    @contextmanager
    def get(self, claim: RowClaim, columns: list[str], way: str) -> Iterator[Iterable[Array]]:
        """See Side."""
        client = next(iter(self._clients.values()))
        if way == "view":
            with client.view(claim.rows, columns) as found:
                yield [array for column in found.values() for array in column.arrays]
        else:
            yield [column.values for column in client.read(claim.rows, columns).values()]

    def finish(self, state: str, claim: RowClaim) -> None:
        """See Side."""
        self._client(state).acknowledge(claim.rows)

    def drop(self, batch: str) -> None:
        """See Side."""
        self._client("update").drop_batch(batch)

    def places(self, claim: RowClaim) -> list[int]:
        """See SpreadSide."""
        return [row.warehouse for row in claim.rows]

    def held_bytes(self) -> list[int]:
        """See SpreadSide."""
        servers = self._client("update").stats().servers
        return [report["bytes"] for role, report in servers.items() if "warehouse" in role]

    def _client(self, state: str) -> DockClient:
        if state not in self._clients:
            self._clients[state] = DockClient(
                self._address, state=state, owner=f"{state}-{os.getpid()}"
            )
        return self._clients[state]


def open_host(capacity: int) -> OurHost:
    """See sample_flow.side."""
    return OurHost(capacity)


def open_side(address: Any) -> OurSide:
    """See sample_flow.side."""
    return OurSide(address)
