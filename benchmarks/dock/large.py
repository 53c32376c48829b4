"""The dock with batches of 100 MB (pixels, logits): thousands are put, looked at and acknowledged, and
nothing grows.

Of every hundred batches one is held for long by a reader that is slow, and one by a reader that is killed
while it looks: its rows are claimed again. `--batches` says how many; `--json FILE` writes the figures.
"""

import argparse
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from benchmarks.dock.churn import own_mib
from benchmarks.dock.metadata import servers_of
from benchmarks.support.figures import Figures
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.rows import NewRow

ROWS, ROW_BYTES = 16, 6_250_000
CAPACITY_BYTES = 1 << 30
EVERY = 100
SLOW_SECONDS = 2.0
WAIT_SECONDS = 120.0
GROWTH_MIB = 16.0
"""Of any process from the first tenth of the batches to the last, at most."""
VICTIM = """
import sys, time
sys.path[:] = {path}
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
with DockClient(DockAddress.from_json({address}), state="look", owner="victim") as client:
    claim = client.claim({batch!r}, timeout_seconds=60)
    with client.view(claim.rows, ["pixels"]) as found:
        print(found["pixels"].row(0)[0], flush=True)
        time.sleep(600)
"""


class Readers:
    """One that reads all, one that is slow, and those that die."""

    def __init__(self, dock: LocalDock) -> None:
        self._dock = dock
        self._reader, self._slow = (dock.client("look", name) for name in ("reader", "slow"))
        self._thread: threading.Thread | None = None

    def read(self, batch: str) -> None:
        """All rows of a batch, where they lie."""
        look(self._reader, batch)

    def read_slowly(self, batch: str) -> None:
        """While others go on."""
        self.close()
        self._thread = threading.Thread(target=look, args=(self._slow, batch, SLOW_SECONDS))
        self._thread.start()

    def die_reading(self, batch: str) -> None:
        """Somebody is killed while it looks; the rows are claimed again."""
        address = self._dock.address.to_json()
        program = VICTIM.format(path=sys.path, address=address, batch=batch)
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        ) as victim:
            assert victim.stdout is not None, "a victim without its output"
            assert victim.stdout.readline(), "it saw nothing"
            victim.kill()
        self._reader.owner_gone("victim")
        self.read(batch)

    def close(self) -> None:
        """Wait for the slow one."""
        if self._thread is not None:
            self._thread.join()


def look(client: DockClient, batch: str, seconds: float = 0.0) -> None:
    """Claim a batch, sum it up after so long, and acknowledge it."""
    number, left = int(batch.rpartition("-")[2]) % 251, ROWS
    while left:
        claim = client.claim(batch, timeout_seconds=WAIT_SECONDS)
        left -= len(claim.rows)
        with client.view(claim.rows, ["pixels"]) as found:
            time.sleep(seconds)
            for array in found["pixels"].arrays:
                assert int(array[0]) == int(array[-1]) == number, "a row came as another"
                assert int(array.view(np.uint64).max()) == number * 0x0101010101010101
        client.acknowledge(claim.rows)


def measure(batches: int, figures: Figures) -> None:
    """Put and read them, one after the other."""
    with LocalDock([State(name="look", needs=("pixels",))], capacity=CAPACITY_BYTES) as dock:
        producer, readers = dock.client("look", "producer"), Readers(dock)
        pixels = np.zeros((ROWS, ROW_BYTES), dtype=np.uint8)
        processes = {**servers_of(), "client": psutil.Process()}
        early, began = dict[str, float](), time.perf_counter()
        for number in range(batches):
            batch = f"batch-{number}"
            pixels[:] = number % 251
            rows = [
                NewRow(
                    uid=f"{batch}/{i}", group=f"{batch}/{i}", group_index=i, columns={"pixels": row}
                )
                for i, row in enumerate(pixels)
            ]
            producer.put_rows(batch, rows, total=ROWS)
            do = {0: readers.read_slowly, 1: readers.die_reading}.get(number % EVERY, readers.read)
            do(batch)
            if number == batches // 10:
                early = {name: own_mib(process.pid) for name, process in processes.items()}
        readers.close()
        seconds = time.perf_counter() - began
        late = {name: own_mib(process.pid) for name, process in processes.items()}
        held = producer.stats().servers["warehouse/0"]
    figures.add("batches of 100 MB, put and looked at", batches, "")
    figures.add("put and looked at", batches * ROWS * ROW_BYTES / 1e6 / seconds, "MB/s")
    for name, size in late.items():
        who = name.partition("/")[0]
        figures.add(f"growth of the {who}", size - early[name], "MiB", limit=GROWTH_MIB)
    figures.add("bytes held at the end", held["bytes"] + held["retained"], "B", limit=0)
    figures.add("holes of the arena at the end", held["holes"], "", limit=1)


def main() -> None:
    """Measure and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="120 batches")
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    figures = Figures()
    measure(120 if options.quick else options.batches, figures)
    if options.json is not None:
        figures.write(options.json, packages=["rljob", "numpy"], facts={})


if __name__ == "__main__":
    main()
