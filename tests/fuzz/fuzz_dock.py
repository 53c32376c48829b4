"""Coverage-guided fuzzing of both dock servers with atheris: `make fuzz`, or this file with libFuzzer's
options, e.g. `-max_total_time=60`.

Spoiled conversations go straight into a server's connection, without a socket. A crash is an exception
that leaves the server, or one that it did not foresee (counted as `internal`).
"""

import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import atheris

sys.path.append(str(Path(__file__).resolve().parents[1] / "support" / "dock"))

with atheris.instrument_imports(include=["rljob_runtime.dock"]):
    from dock_conversations import GRAPH, TOKEN, spoil, with_controller, with_warehouse

    from rljob_runtime.dock.controller.controller_server import ControllerServer
    from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
    from rljob_runtime.dock.wire.wire_server import DockServer

CAPACITY_BYTES = 1 << 16
TURNS = 4
"""Of the loop after each message: answers that are made later."""


class Wire(asyncio.Transport):
    """Takes what a server sends and forgets it."""

    def __init__(self) -> None:
        super().__init__({"socket": socket.socket()})
        self.closed = False

    def write(self, data: Any) -> None:
        memoryview(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def new_server(warehouse: bool) -> DockServer:
    """One that has not begun to listen."""
    if not warehouse:
        return ControllerServer(state="update", graph=GRAPH, warehouses=[("", 0)], token=TOKEN)
    server = WarehouseServer(
        index=0,
        graph=GRAPH,
        capacity_bytes=CAPACITY_BYTES,
        token=TOKEN,
        warehouses=[("", 0), ("", 0)],
    )
    server._link.ready.set()
    return server


async def converse(data: bytes) -> None:
    """One conversation, spoiled as the bytes say, with one server."""
    choices = atheris.FuzzedDataProvider(data)
    warehouse = choices.ConsumeBool()
    frames = with_warehouse() if warehouse else with_controller()
    messages = spoil(frames, lambda below: choices.ConsumeIntInRange(0, max(0, below - 1)))
    server, wire = new_server(warehouse), Wire()
    peer = server._new_peer()
    peer.connection_made(wire)
    for message in messages:
        left = memoryview(message)
        while len(left) and not wire.closed:
            buffer = peer.get_buffer(-1)
            size = min(len(buffer), len(left))
            buffer[:size], left = left[:size], left[size:]
            peer.buffer_updated(size)
        for _ in range(TURNS):
            await asyncio.sleep(0)
    peer.connection_lost(None)
    assert not server.refused["internal"], "an error that nobody foresaw; see the log"
    wire.get_extra_info("socket").close()
    if isinstance(server, WarehouseServer):
        server.store.slabs.memory.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def main() -> None:
    logging.disable(logging.WARNING)
    loop = asyncio.new_event_loop()
    atheris.Setup(sys.argv, lambda data: loop.run_until_complete(converse(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
