"""What the dock's metadata costs: half a million rows of 10 bytes, told to ten controllers.

One warehouse and the controllers of ten states, each a process, on this machine. The rows are too
small for their data to count: what is left is the broadcast and the controllers' book-keeping.
"""

import argparse
import subprocess
import time
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
PUT_ROWS, ROW_BYTES = 1000, 10
CLAIMED_ROWS, CLAIMS = 16, 500
CAPACITY_BYTES = 1 << 30
WAIT_SECONDS = 600.0
BATCH = "rows"


def measure(num_rows: int, figures: Figures) -> None:
    """Put all rows, wait until every controller knows them, claim some."""
    states = [State(name=f"state{i}", needs=("data",)) for i in range(NUM_CONTROLLERS)]
    with LocalDock(states, capacity=CAPACITY_BYTES) as dock:
        servers = _servers()
        client = dock.client("state0", "producer", timeout_seconds=WAIT_SECONDS)
        client.stats()
        idle = {role: _memory(process) for role, process in servers.items()}
        started = time.perf_counter()
        _put(client, num_rows)
        figures.add("rows put a second", num_rows / (time.perf_counter() - started), "")
        readers = [dock.client(state.name, f"reader-{state.name}") for state in states]
        for reader in readers:
            _until_known(reader, num_rows)
        seconds = time.perf_counter() - started
        figures.add("until all controllers know all rows", seconds, "s")
        used = {role: sum(process.cpu_times()[:2]) for role, process in servers.items()}
        warehouse = used.pop("warehouse")
        each = 1e6 / num_rows
        figures.add("processor time of the warehouse", warehouse, "s")
        figures.add("processor time of the warehouse, a row", warehouse * each, "µs")
        figures.add("processor time of a controller, median", median(used.values()), "s")
        figures.add("processor time of a controller, a row", median(used.values()) * each, "µs")
        told = median(_received(servers[role]) for role in used)
        figures.add("bytes of broadcast to a controller", told / 1e6, "MB")
        figures.add("bytes of broadcast to a controller, a row", told / num_rows, "B")
        grown = median(_memory(servers[role]) - idle[role] for role in used)
        figures.add("memory of a controller, a row", grown / num_rows, "B")
        grown = _memory(servers["warehouse"]) - idle["warehouse"]
        figures.add("memory of the warehouse, a row", grown / num_rows, "B")
        claims = _claims(readers[-1], min(CLAIMS, num_rows // CLAIMED_ROWS - 1))
    for name, fraction in (("p50", 0.5), ("p99", 0.99)):
        value = 1e6 * quantile(claims, fraction)
        figures.add(f"claim of {CLAIMED_ROWS} of all rows, {name}", value, "µs")


def _put(client: DockClient, num_rows: int) -> None:
    values = {"data": np.full(ROW_BYTES, 7, dtype=np.uint8)}
    for first in range(0, num_rows, PUT_ROWS):
        rows = [
            NewRow(uid=f"{BATCH}/{i}", group=f"{BATCH}/{i}", group_index=i, columns=values)
            for i in range(first, min(num_rows, first + PUT_ROWS))
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


def _servers() -> dict[str, psutil.Process]:
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
    if options.json is not None:
        facts = {"controllers": NUM_CONTROLLERS, "rows": num_rows}
        figures.write(options.json, packages=["rljob", "numpy", "msgspec"], facts=facts)


if __name__ == "__main__":
    main()
