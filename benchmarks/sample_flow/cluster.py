"""A dock over several machines: S nodes, each with a link for its worker and one for its warehouse.

So no row is ever read where it lies, whatever S is. With `central`, one warehouse holds the rows of
all nodes: the same code as a central replay buffer. A state's controller sits beside a worker.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from sample_flow.network import Network
from sample_flow.processes import Process

PORT = 7001
CAPACITY_BYTES = 1 << 30
CHUNK_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step took.

    put_seconds, read_seconds: of its two phases. put_bytes, read_bytes: over each warehouse's link,
    headers included, received while rows were put and sent while they were read. notice_bytes: sent
    while they were put, nearly all of it broadcast. held_bytes: by each warehouse between the two.
    other_node: share of reads of a row that lies at another node. busy: share of the processors'
    time.
    """

    put_seconds: float
    read_seconds: float
    put_bytes: list[int]
    notice_bytes: list[int]
    read_bytes: list[int]
    held_bytes: list[int]
    other_node: float
    busy: float

    @property
    def seconds(self) -> float:
        """Of both phases."""
        return self.put_seconds + self.read_seconds


class Cluster:
    """Servers and workers on a network; a context manager.

    nodes: S. states: columns that each reads, none for a state that only acknowledges.
    megabytes_per_second: of each link, each way; 0: as fast as it is.
    """

    def __init__(
        self,
        nodes: int,
        states: Mapping[str, Sequence[str]],
        *,
        central: bool,
        megabytes_per_second: float,
        folder: Path,
    ) -> None:
        self._states, self._folder, self._log = states, folder, folder / "servers.log"
        self._workers = [f"worker{i}" for i in range(nodes)]
        self._warehouses = [f"dock{i}" for i in range(1 if central else nodes)]
        self._network = Network(
            [*self._workers, *self._warehouses], megabytes_per_second=megabytes_per_second
        )
        self._servers: list[subprocess.Popen[str]] = []
        self._nodes: list[Process] = []
        self._steps = 0

    def __enter__(self) -> Self:
        self._network.__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def step(self, lengths: Mapping[str, int], rows: int) -> Step:
        """All nodes put so many rows each; then all read all of them, as each state."""
        self._steps += 1
        batch, total = f"step-{self._steps}", rows * len(self._nodes)
        for number, node in enumerate(self._nodes):
            node.ask("make", batch=batch, lengths=lengths, first=number * rows, count=rows)
        psutil.cpu_percent()
        start = self._traffic()
        put = self._all("put", batch=batch, total=total, chunk=CHUNK_ROWS)
        between = self._traffic()
        reports = self._nodes[0].ask("stats")
        work = self._all("work", batch=batch, chunk=CHUNK_ROWS)
        end = self._traffic()
        return Step(
            put_seconds=max(ended for _, ended in put) - min(began for began, _ in put),
            read_seconds=max(w["ended"] for w in work) - min(w["began"] for w in work),
            put_bytes=_grown(start, between, "received"),
            notice_bytes=_grown(start, between, "sent"),
            read_bytes=_grown(between, end, "sent"),
            held_bytes=[r["bytes"] for role, r in reports.items() if "warehouse" in role],
            other_node=_other_node([w["read"] for w in work]),
            busy=psutil.cpu_percent() / 100,
        )

    def close(self) -> None:
        """End the processes and the network."""
        for node in self._nodes:
            node.close()
        for server in self._servers:
            server.kill()
            server.wait()
        self._nodes.clear()
        self._servers.clear()
        self._network.__exit__()

    def _start(self) -> None:
        graph = [
            {"name": state, "needs": list(columns) or ["scalar0"], "writes": []}
            for state, columns in self._states.items()
        ]
        shared = {"graph": graph, "token": secrets.token_urlsafe(16)}
        warehouses = [(self._network.address(name), PORT) for name in self._warehouses]
        controllers = {
            state: (self._network.address(self._workers[i % len(self._workers)]), PORT + i)
            for i, state in enumerate(self._states)
        }
        for index, (host, port) in enumerate(warehouses):
            place = {"index": index, "host": host, "port": port, "warehouses": []}
            config = {**shared, **place, "capacity_bytes": CAPACITY_BYTES}
            self._serve("warehouse", self._warehouses[index], config)
        for i, (state, (host, port)) in enumerate(controllers.items()):
            place = {"state": state, "host": host, "port": port, "warehouses": warehouses}
            self._serve("controller", self._workers[i % len(self._workers)], {**shared, **place})
        for server in self._servers:
            assert server.stdout is not None, "a server without its output"
            if not server.stdout.readline():
                raise RuntimeError(f"a server of the dock ended:\n{self._log.read_text()[-2000:]}")
        address = {"token": shared["token"], "warehouses": warehouses, "controllers": controllers}
        for number, name in enumerate(self._workers):
            log = self._folder / f"{name}.log"
            prefix = self._network.prefix(name)
            node = Process(sys.executable, log, module="sample_flow.node", prefix=prefix)
            self._nodes.append(node)
            node.tell(
                "open",
                number=number,
                address={**address, "shared_memory": "none"},
                states={state: list(columns) for state, columns in self._states.items()},
            )
        for node in self._nodes:
            node.answer()

    def _serve(self, kind: str, machine: str, config: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "rljob_runtime.dock.serve", kind, "--with-parent"]
        with self._log.open("ab") as errors:
            server = subprocess.Popen(
                [*self._network.prefix(machine), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert server.stdin is not None, "a server without its input"
        server.stdin.write(json.dumps(config))
        server.stdin.close()
        self._servers.append(server)

    def _all(self, do: str, **order: Any) -> list[Any]:
        for node in self._nodes:
            node.tell(do, **order)
        return [node.answer() for node in self._nodes]

    def _traffic(self) -> list[dict[str, int]]:
        return [self._network.traffic(name) for name in self._warehouses]


def _grown(early: list[dict[str, int]], late: list[dict[str, int]], way: str) -> list[int]:
    return [after[way] - before[way] for before, after in zip(early, late, strict=True)]


def _other_node(reads: Sequence[Mapping[str, int]]) -> float:
    everywhere = sum(sum(read.values()) for read in reads)
    own = sum(read.get(str(number), 0) for number, read in enumerate(reads))
    return 1 - own / everywhere
