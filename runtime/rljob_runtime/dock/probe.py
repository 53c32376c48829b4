"""Measurement of how fast a dock moves rows here: `python -m rljob_runtime.dock.probe serve|read`.

`serve` runs a warehouse and a controller (on the next port). `read`, in another process or pod, writes rows
to it, claims and reads them over shared memory or TCP, and prints one JSON line. `benchmarks/dock/paths.py`
also uses it. The rows are meaningless, and the token is no secret.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer

GRAPH = StateGraph(states=(State(name="use", needs=("data",)),))
TOKEN = "probe"
CAPACITY_BYTES = 512 << 20
ROW_BYTES = (10, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)
BATCH_BYTES, MOST_ROWS = 64 << 20, 1000
CLAIMED_ROWS, CLAIM_BATCH_ROWS = 16, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Timings of one batch of rows.

    put_seconds: of writing. read_seconds: of reading into separate arrays. view_seconds: of reading every
    byte in place, where there is shared memory.
    """

    num_bytes: int
    put_seconds: float
    read_seconds: float
    view_seconds: float


def measure_rows(client: DockClient, name: str, row_bytes: int) -> Turn:
    """Write, read, view and drop a batch of rows of one size; its name must be new."""
    count = max(1, min(MOST_ROWS, BATCH_BYTES // row_bytes))
    rows = _rows(name, count, row_bytes)
    started = time.perf_counter()
    client.put_rows(name, rows, total=count)
    put_seconds = time.perf_counter() - started
    claimed = client.claim(name, share=(0, 1), timeout_seconds=60).rows
    started = time.perf_counter()
    column = client.read(claimed, ["data"])["data"]
    read_seconds = time.perf_counter() - started
    del column
    started = time.perf_counter()
    with client.view(claimed, ["data"]) as columns:
        highest = _highest_word(columns["data"])
    view_seconds = time.perf_counter() - started
    assert highest == int.from_bytes(bytes([7]) * 8, "little"), "the rows came back as others"
    client.acknowledge(claimed)
    return Turn(
        num_bytes=count * row_bytes,
        put_seconds=put_seconds,
        read_seconds=read_seconds,
        view_seconds=view_seconds,
    )


def measure_claims(
    client: DockClient, name: str, row_bytes: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of claims of 16 rows, and of each claim together with reading its rows."""
    client.put_rows(name, _rows(name, CLAIM_BATCH_ROWS, row_bytes), total=CLAIM_BATCH_ROWS)
    claims: list[float] = []
    both: list[float] = []
    while True:
        started = time.perf_counter()
        claim = client.claim(name, limit=CLAIMED_ROWS, timeout_seconds=60)
        claimed = time.perf_counter()
        if claim.done:
            return claims, both
        client.read(claim.rows, ["data"])
        both.append(time.perf_counter() - started)
        claims.append(claimed - started)
        client.acknowledge(claim.rows)


def _rows(name: str, count: int, row_bytes: int) -> list[NewRow]:
    values = np.full(row_bytes, 7, dtype=np.uint8)
    return [
        NewRow(uid=f"{name}/{i}", group=f"{name}/{i}", group_index=i, columns={"data": values})
        for i in range(count)
    ]


def _highest_word(column: Column) -> int:
    """Return the highest eight bytes of the column after reading all bytes in place."""
    arrays = [column.values] if isinstance(column, Ragged) else column.rows()
    eights = [array[: len(array) // 8 * 8].view(np.int64) for array in arrays]
    return max(int(eight.max(initial=0)) for eight in eights)


async def serve(host: str, port: int, directory: str | None) -> None:
    """Run a warehouse on the port and a controller on the next one, until they are stopped."""
    warehouse = WarehouseServer(
        index=0,
        graph=GRAPH,
        capacity_bytes=CAPACITY_BYTES,
        token=TOKEN,
        host=host,
        port=port,
        shared_directory=directory,
    )
    _, warehouse_port = await warehouse.start()
    controller = ControllerServer(
        state="use",
        graph=GRAPH,
        warehouses=[(host, warehouse_port)],
        token=TOKEN,
        host=host,
        port=port and port + 1,
        shared_directory=directory,
    )
    _, controller_port = await controller.start()
    ports = {"host": host, "port": warehouse_port, "controller_port": controller_port}
    sys.stdout.write(json.dumps(ports) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def read(
    host: str,
    port: int,
    controller_port: int,
    mode: str,
    row_bytes: Sequence[int],
    turns: int,
) -> dict[str, object]:
    """Return medians of some turns with a served dock, after one that warms up."""
    address = DockAddress(
        token=TOKEN, warehouses=((host, port),), controllers={"use": (host, controller_port)}
    )
    shared = {"shared": "required", "tcp": "none"}[mode]
    run = f"{mode}-{time.time_ns()}"
    with DockClient(address, state="use", owner=run, shared_memory=shared) as client:
        figures: dict[str, dict[str, float]] = {}
        for size in row_bytes:
            taken = [measure_rows(client, f"{run}/{size}/{i}", size) for i in range(turns + 1)][1:]
            figures[str(size)] = {
                "put_gb_per_second": _rate(taken, [t.put_seconds for t in taken]),
                "read_gb_per_second": _rate(taken, [t.read_seconds for t in taken]),
                "view_gb_per_second": _rate(taken, [t.view_seconds for t in taken]),
            }
        claims, both = measure_claims(client, f"{run}/claims", 4000)
        path = client.data_paths[0]
    return {
        "mode": mode,
        "data_path": "shared" if path.shared else "tcp",
        "why": path.why,
        "row_bytes": figures,
        "claim_microseconds": 1e6 * statistics.median(claims),
        "claim_and_read_microseconds": 1e6 * statistics.median(both),
    }


def _rate(turns: Sequence[Turn], seconds: Sequence[float]) -> float:
    return statistics.median(t.num_bytes / s / 1e9 for t, s in zip(turns, seconds, strict=True))


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve` and `read`."""
    commands = parser.add_subparsers(dest="command")
    serving = commands.add_parser("serve", help="a warehouse and a controller, for `read`")
    serving.add_argument("--host", default="127.0.0.1")
    serving.add_argument("--port", type=int, required=True, help="and the one after it; 0: any two")
    serving.add_argument("--directory", help="shared with readers; holds the unix socket")
    reading = commands.add_parser("read", help="write rows to a served dock and read them")
    reading.add_argument("--address", required=True, metavar="HOST:PORT")
    reading.add_argument("--controller-port", type=int, help="default: the one after PORT")
    reading.add_argument("--mode", choices=["shared", "tcp"], required=True)
    reading.add_argument("--row-bytes", type=int, nargs="+", default=list(ROW_BYTES))
    reading.add_argument("--turns", type=int, default=5)


def run_command(options: argparse.Namespace) -> None:
    """Execute `serve` or `read`."""
    if options.command == "serve":
        asyncio.run(serve(options.host, options.port, options.directory))
        return
    host, _, port = options.address.rpartition(":")
    server = (host, int(port), options.controller_port or int(port) + 1)
    figures = read(*server, options.mode, options.row_bytes, options.turns)
    sys.stdout.write(json.dumps(figures) + "\n")


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="rljob_runtime.dock.probe")
    add_commands(parser)
    options = parser.parse_args()
    if options.command is None:
        parser.error("choose serve or read")
    run_command(options)


if __name__ == "__main__":
    main()
