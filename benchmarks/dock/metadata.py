"""What the dock's metadata costs: half a million rows of 10 bytes, told to ten controllers.

One warehouse and the controllers of ten states, each a process, on this machine. The rows are too
small for their data to count: what is left is the broadcast and the controllers' book-keeping. They are put
a thousand in a message; a tenth of them once more 32 in a message, as a worker puts what it has generated.
"""

import argparse
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks.support.figures import Figures
from benchmarks.support.results import quantile
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.rows import NewRow

NUM_CONTROLLERS = 10
NUM_ROWS, QUICK_ROWS = 500_000, 20_000
PUT_ROWS, FEW_ROWS, ROW_BYTES = 1000, 32, 10
FEWER = 10
CLAIMED_ROWS, CLAIMS = 16, 500
CAPACITY_BYTES = 1 << 30
WAIT_SECONDS = 600.0
LIMITS = (4.0, 1.0)
"""Microseconds a row: of the warehouse, of a controller."""
BATCH = "rows"
STATES = [State(name=f"state{i}", needs=("data",)) for i in range(NUM_CONTROLLERS)]


def measure(num_rows: int, figures: Figures) -> None:
    """Put all rows, wait until every controller knows them, claim some."""
    with _dock() as dock:
        servers, client, readers = servers_of(), *_clients(dock)
        idle = {role: _memory(process) for role, process in servers.items()}
        before = _used(servers)
        started = time.perf_counter()
        _put(client, num_rows, PUT_ROWS)
        figures.add("rows put a second", num_rows / (time.perf_counter() - started), "")
        for reader in readers:
            _until_known(reader, num_rows)
        seconds = time.perf_counter() - started
        figures.add("until all controllers know all rows", seconds, "s", limit=8)
        said = f"a row, {PUT_ROWS:,} in a message"
        _add_used(figures, before, _used(servers), num_rows, said, limits=LIMITS)
        controllers = [process for role, process in servers.items() if role != "warehouse"]
        told = median(_received(process) for process in controllers)
        figures.add("bytes of broadcast to a controller, a row", told / num_rows, "B")
        grown = {role: _memory(process) - idle[role] for role, process in servers.items()}
        of_warehouse = grown.pop("warehouse") / num_rows
        figures.add("memory of the warehouse, a row", of_warehouse, "B", limit=150)
        figures.add(
            "memory of a controller, a row", median(grown.values()) / num_rows, "B", limit=100
        )
        claims = _claims(readers[-1], min(CLAIMS, num_rows // CLAIMED_ROWS - 1))
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        value = 1e6 * quantile(claims, fraction)
        figures.add(f"claim of {CLAIMED_ROWS} of all rows, {name}", value, "µs")


def measure_few(num_rows: int, figures: Figures) -> None:
    """The same rows in messages of a few: processor time."""
    with _dock() as dock:
        servers, client, readers = servers_of(), *_clients(dock)
        before = _used(servers)
        _put(client, num_rows, FEW_ROWS)
        for reader in readers:
            _until_known(reader, num_rows)
        known = _used(servers)
        said = f"a row, {FEW_ROWS} in a message"
        _add_used(figures, before, known, num_rows, said, limits=LIMITS)
        for reader in readers:
            _finish(reader, num_rows)
        said = f"a row that a state claims and acknowledges, {FEW_ROWS} at a time"
        warehouse, controller = _used(servers)
        after = (known[0] + (warehouse - known[0]) / len(readers), controller)
        _add_used(figures, known, after, num_rows, said)


def _finish(reader: DockClient, num_rows: int) -> None:
    """Claim all rows as this state, and acknowledge them."""
    left = num_rows
    while left:
        claim = reader.claim(BATCH, limit=FEW_ROWS, timeout_seconds=WAIT_SECONDS)
        reader.acknowledge(claim.rows)
        left -= len(claim.rows)


def _add_used(
    figures: Figures,
    before: Sequence[float],
    after: Sequence[float],
    num_rows: int,
    said: str,
    *,
    limits: Sequence[float | None] = (None, None),
) -> None:
    for who, least, used, limit in zip(
        ("the warehouse", "a controller"), before, after, limits, strict=True
    ):
        each = 1e6 * (used - least) / num_rows
        figures.add(f"processor time of {who}, {said}", each, "µs", limit=limit)


def _dock() -> LocalDock:
    return LocalDock(STATES, capacity=CAPACITY_BYTES)


def _clients(dock: LocalDock) -> tuple[DockClient, list[DockClient]]:
    """The producer, and a reader of each state; all servers have subscribed."""
    client = dock.client(STATES[0].name, "producer", timeout_seconds=WAIT_SECONDS)
    client.stats()
    return client, [dock.client(state.name, f"reader-{state.name}") for state in STATES]


def _used(servers: Mapping[str, psutil.Process]) -> tuple[float, float]:
    """Seconds of processor time: of the warehouse, and a controller's median."""
    used = {role: sum(process.cpu_times()[:2]) for role, process in servers.items()}
    return used.pop("warehouse"), median(used.values())


def _put(client: DockClient, num_rows: int, rows_a_message: int) -> None:
    values = {"data": np.full(ROW_BYTES, 7, dtype=np.uint8)}
    for first in range(0, num_rows, rows_a_message):
        rows = [
            NewRow(uid=f"{BATCH}/{i}", group=f"{BATCH}/{i}", group_index=i, columns=values)
            for i in range(first, min(num_rows, first + rows_a_message))
        ]
        client.put_rows(BATCH, rows, total=num_rows)


def _until_known(reader: DockClient, num_rows: int) -> None:
    """A claim of a share is answered once all rows of the batch are known and ready."""
    last = (num_rows - 1, num_rows)
    reader.give_back(reader.claim(BATCH, share=last, timeout_seconds=WAIT_SECONDS).rows)


def _claims(reader: DockClient, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        reader.claim(BATCH, limit=CLAIMED_ROWS, timeout_seconds=WAIT_SECONDS)
        seconds.append(time.perf_counter() - started)
    return seconds


def servers_of() -> dict[str, psutil.Process]:
    """The dock's processes: "warehouse", and "controller/PID" of each controller."""
    found = {}
    for process in psutil.Process().children():
        kind = next((k for k in ("warehouse", "controller") if k in process.cmdline()), None)
        if kind is not None:
            found[kind if kind == "warehouse" else f"{kind}/{process.pid}"] = process
    return found


def _memory(process: psutil.Process) -> int:
    """What no other process shares, and not the warehouse's arena."""
    return int(process.memory_full_info().uss)


def _received(controller: psutil.Process) -> int:
    """Bytes over the controller's connection to the warehouse."""
    ports = {c.laddr.port for c in controller.net_connections("tcp") if c.status == "ESTABLISHED"}
    shown = subprocess.run(
        ["ss", "--tcp", "--info", "--numeric", "--oneline", "--no-header"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    most = 0
    for line in shown.splitlines():
        words = line.split()
        if int(words[3].rpartition(":")[2]) in ports:
            counts = [w.partition(":")[2] for w in words if w.startswith("bytes_received:")]
            most = max(most, *map(int, counts), 0)
    return most


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS:,} rows")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    num_rows = QUICK_ROWS if options.quick else NUM_ROWS
    figures = Figures()
    measure(num_rows, figures)
    measure_few(num_rows // FEWER, figures)
    if options.json is not None:
        facts = {"controllers": NUM_CONTROLLERS, "rows": num_rows}
        figures.write(options.json, packages=["rljob", "numpy", "msgspec"], facts=facts)


if __name__ == "__main__":
    main()
