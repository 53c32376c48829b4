"""A small dataflow graph, rows for it, and a dock of servers on threads."""

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer

GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response", "logprobs")),
        State(name="reward", needs=("prompt", "response"), writes=("reward",)),
        State(name="update", needs=("response", "logprobs", "reward")),
    )
)


def new_rows(batch: str, *, groups: int, samples: int, reserve_bytes: int = 0) -> list[NewRow]:
    """Rows whose prompt of group g is [g, g, ...] of length g + 1."""
    return [
        NewRow(
            uid=f"{batch}/{g}/{s}",
            group=f"{batch}/{g}",
            group_index=g,
            group_columns={"prompt": np.full(g + 1, g, dtype=np.int32)},
            reserve_bytes=reserve_bytes,
        )
        for g in range(groups)
        for s in range(samples)
    ]


def responses(rows: tuple[RowMeta, ...] | list[RowMeta], stamp: int = 1) -> dict[str, Ragged]:
    """What generate writes: row i has i + 1 tokens, all equal to the stamp."""
    lengths = range(1, len(rows) + 1)
    return {
        "response": Ragged.from_rows([np.full(n, stamp, dtype=np.int32) for n in lengths]),
        "logprobs": Ragged.from_rows([np.full(n, stamp, dtype=np.float32) for n in lengths]),
    }


def rewards(rows: tuple[RowMeta, ...] | list[RowMeta]) -> dict[str, Ragged]:
    """What reward writes."""
    return {"reward": Ragged.from_rows([np.ones(1, dtype=np.float32) for _ in rows])}


@dataclass(kw_only=True)
class ThreadDock:
    """A dock in this process; `close` ends it. shared_directory: of the warehouses' unix sockets."""

    warehouses: int = 1
    capacity: int = 1 << 20
    lease_seconds: float = 600.0
    token: str = "secret"
    graph: StateGraph = GRAPH
    shared_directory: str | None = None
    shared_memory: str = "auto"
    threads: list[ServerThread] = field(default_factory=list)
    clients: list[DockClient] = field(default_factory=list)

    def start(self) -> "ThreadDock":
        """Start every server."""
        places = []
        for index in range(self.warehouses):
            server = WarehouseServer(
                index=index,
                graph=self.graph,
                capacity_bytes=self.capacity,
                token=self.token,
                shared_directory=self.shared_directory,
                pin_seconds=self.lease_seconds,
            )
            self.threads.append(ServerThread(server))
            places.append(self.threads[-1].start())
        controllers = {}
        for state in self.graph.names:
            controller = ControllerServer(
                state=state,
                graph=self.graph,
                warehouses=places,
                token=self.token,
                lease_seconds=self.lease_seconds,
                shared_directory=self.shared_directory,
            )
            self.threads.append(ServerThread(controller))
            controllers[state] = self.threads[-1].start()
        self.address = DockAddress(
            token=self.token,
            warehouses=tuple(places),
            controllers=controllers,
            shared_memory=self.shared_memory,
        )
        return self

    def client(self, state: str, owner: str = "worker", **options: Any) -> DockClient:
        """A client that is closed at the end."""
        self.clients.append(DockClient(self.address, state=state, owner=owner, **options))
        return self.clients[-1]

    def close(self) -> None:
        """End clients and servers."""
        for client in self.clients:
            client.close()
        for thread in reversed(self.threads):
            thread.stop()


@pytest.fixture
def make_dock(tmp_path: Path) -> Iterator[Callable[..., ThreadDock]]:
    docks: list[ThreadDock] = []

    def make(**options: int | float | str | None) -> ThreadDock:
        place = {"shared_directory": str(tmp_path / "dock")}
        docks.append(ThreadDock(**{**place, **options}).start())  # type: ignore[arg-type]
        return docks[-1]

    yield make
    for dock in docks:
        dock.close()


@pytest.fixture
def rows_of() -> Callable[..., list[NewRow]]:
    return new_rows


@pytest.fixture
def responses_of() -> Callable[..., dict[str, Ragged]]:
    return responses


@pytest.fixture
def rewards_of() -> Callable[..., dict[str, Ragged]]:
    return rewards


@pytest.fixture
def graph() -> StateGraph:
    return GRAPH


@pytest.fixture
def lost_pod() -> Iterator[tuple[str, int]]:
    """A place where nobody answers, not even with a refusal: a queue that is full."""
    with socket.socket() as listening, contextlib.ExitStack() as queue:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()
