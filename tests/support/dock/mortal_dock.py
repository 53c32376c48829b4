"""A dock of servers on threads that die at once, each behind a gate that knows every frame.

A gate stands at a server's address and passes frames on, one after the other. It can end a server
between two frames: before a request is delivered, or after it was carried out and before its answer is.
What dies so sends nothing any more and remembers nothing, as after SIGKILL.
"""

import asyncio
import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.dock.wire.frames import HEAD_BYTES, SUM_BYTES, FrameKind, read_head
from rljob_runtime.dock.wire.wire_server import DockServer

TOKEN = "secret"
NOBODY = 1
"""A port where nothing listens."""
COUNTED = {
    *(
        FrameKind.PUT_ROWS,
        FrameKind.WRITE,
        FrameKind.READ,
        FrameKind.DROP_BATCH,
        FrameKind.CLAIM,
        FrameKind.GIVE_BACK,
    ),
    FrameKind.FORWARD,
}
"""Requests whose number does not depend on time."""


@dataclass(frozen=True)
class Boundary:
    """Where something dies. role: to whom the request goes; number: of its requests, from 1.

    after: carried out, the answer not delivered. victim: who dies.
    """

    role: str
    number: int
    after: bool
    victim: str


@dataclass
class Gate:
    """Stands before one server. port: where it listens; behind: the server's port now."""

    role: str
    strike: Callable[["Gate", int, bool], bool]
    behind: int = 0
    kinds: list[FrameKind] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> int:
        """Nobody reaches the server, which lives; returns its port, to set `behind` to again."""
        port, self.behind = self.behind, NOBODY
        for connection in list(self._open):
            _end(connection)
        return port

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _listen(self) -> None:
        while True:
            try:
                front, _ = self._listener.accept()
                back = socket.create_connection(("127.0.0.1", self.behind), timeout=5)
            except ConnectionError:
                front.close()
                continue
            except OSError:
                return
            for connection in (front, back):
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(connection)
            numbers: deque[int] = deque()
            for source, target, asked in ((front, back, True), (back, front, False)):
                pump = threading.Thread(
                    target=self._pump, args=(source, target, asked, numbers), daemon=True
                )
                pump.start()

    def _pump(
        self, source: socket.socket, target: socket.socket, asked: bool, numbers: deque[int]
    ) -> None:
        """numbers: of the connection's requests that have no answer yet."""
        try:
            while (frame := _frame(source)) is not None:
                kind, data = frame
                with self._lock:
                    if self.strike(self, self._number(kind, asked, numbers), not asked):
                        return
                target.sendall(data)
        except OSError:
            pass
        finally:
            for connection in (source, target):
                self._open.discard(connection)
                _end(connection)

    def _number(self, kind: FrameKind, asked: bool, numbers: deque[int]) -> int:
        """The counted request that this frame is, or answers; 0 for others."""
        if not asked:
            return (
                numbers.popleft() if kind in (FrameKind.DONE, FrameKind.FAILED) and numbers else 0
            )
        number = 0
        if kind in COUNTED:
            self.kinds.append(kind)
            number = len(self.kinds)
        if kind is not FrameKind.RELEASE:
            numbers.append(number)
        return number


@dataclass(kw_only=True)
class MortalDock:
    """warehouses, replicas: as in the job. boundary: where somebody dies, once; None: nobody.

    back: starts the victim again at once.
    """

    graph: StateGraph
    warehouses: int = 2
    replicas: int = 1
    lease_seconds: float = 30.0
    capacity: int = 1 << 20
    boundary: Boundary | None = None
    back: bool = True
    struck: bool = False
    on_death: Callable[[str], None] = lambda victim: None

    def __enter__(self) -> "MortalDock":
        self.roles = [f"warehouse/{i}" for i in range(self.warehouses)]
        self.roles += [f"controller/{state}" for state in self.graph.names]
        self.gates = {role: Gate(role, self._strike) for role in self.roles}
        places = {role: ("127.0.0.1", gate.port) for role, gate in self.gates.items()}
        self.address = DockAddress(
            token=TOKEN,
            warehouses=tuple(places[f"warehouse/{i}"] for i in range(self.warehouses)),
            controllers={state: places[f"controller/{state}"] for state in self.graph.names},
            shared_memory="none",
        )
        self.threads: dict[str, ServerThread] = {}
        self.clients: list[DockClient] = []
        for role in self.roles:
            self.start(role)
        return self

    def __exit__(self, *exc: object) -> None:
        self.boundary = None
        closing = [threading.Thread(target=client.close) for client in self.clients]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        for gate in self.gates.values():
            gate.close()
        for server in self.threads.values():
            server.stop()

    def client(self, state: str, owner: str = "worker", **options: Any) -> DockClient:
        self.clients.append(DockClient(self.address, state=state, owner=owner, **options))
        return self.clients[-1]

    def server(self, role: str) -> Any:
        return self.threads[role].server

    def start(self, role: str) -> None:
        """Begin, or begin again with an empty memory."""
        self.threads[role] = ServerThread(self._new_server(role))
        self.gates[role].behind = self.threads[role].start()[1]

    def kill(self, role: str) -> None:
        """End the server now; what it has not sent is never sent."""
        thread = self.threads[role]
        dying = asyncio.run_coroutine_threadsafe(_fall_silent(self.server(role)), thread._loop)
        dying.result(10)
        thread._loop.call_soon_threadsafe(thread._loop.stop)
        thread._thread.join(10)

    def requests(self) -> dict[str, list[FrameKind]]:
        """The counted requests that each server got."""
        return {role: list(gate.kinds) for role, gate in self.gates.items()}

    def _new_server(self, role: str) -> DockServer:
        kind, _, name = role.partition("/")
        if kind == "controller":
            return ControllerServer(
                state=name,
                graph=self.graph,
                warehouses=self.address.warehouses,
                token=TOKEN,
                lease_seconds=self.lease_seconds,
            )
        return WarehouseServer(
            index=int(name),
            graph=self.graph,
            capacity_bytes=self.capacity,
            token=TOKEN,
            warehouses=self.address.warehouses if self.replicas == 2 else (),
        )

    def _strike(self, gate: Gate, number: int, after: bool) -> bool:
        """Called before each frame is passed on; True: the connection is over."""
        boundary = self.boundary
        if self.struck or boundary is None or not number:
            return False
        if (gate.role, number, after) != (boundary.role, boundary.number, boundary.after):
            return False
        self.struck = True
        if boundary.victim in self.threads:
            self.kill(boundary.victim)
            if self.back:
                self.start(boundary.victim)
        self.on_death(boundary.victim)
        return True


async def _fall_silent(server: DockServer) -> None:
    """Cut every connection of the server, those too that it is just accepting, and end what it does."""
    for listener in server._servers:
        listener.close()
    for peer in list(server.peers):
        if peer._transport is not None:
            peer._transport.abort()
    own = asyncio.current_task()
    while others := {
        task
        for task in asyncio.all_tasks() - {own}
        if getattr(task.get_coro(), "__name__", "") != "_serve"
    }:
        for task in others:
            task.cancel()
        await asyncio.wait(others, timeout=1)
    await asyncio.sleep(0)  # what they closed is closed in the loop's next turn


def _frame(source: socket.socket) -> tuple[FrameKind, bytes] | None:
    head = source.recv(HEAD_BYTES, socket.MSG_WAITALL)
    if len(head) < HEAD_BYTES:
        return None
    kind, header_bytes, payload_bytes = read_head(head, trusted=True)
    body = source.recv(header_bytes + payload_bytes + SUM_BYTES, socket.MSG_WAITALL)
    return kind, head + body


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
