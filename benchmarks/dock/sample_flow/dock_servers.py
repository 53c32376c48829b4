"""The dock's servers on a cluster: a warehouse for each machine with data, controllers beside workers."""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.dock.sample_flow.network import Network

PORT = 7001
CAPACITY_BYTES = 1 << 30


class DockServers:
    """See sample_flow.cluster.Servers. warehouses: one holds the rows of all nodes, like a central replay
    buffer. states: columns that each reads."""

    side = "rljob"
    python = sys.executable
    claimed_rows = 4
    """A state ends for all together, so that a last large claim would keep them waiting."""

    def __init__(self, warehouses: int, states: Mapping[str, Sequence[str]]) -> None:
        self.data = [f"data{i}" for i in range(warehouses)]
        self.machines = self.data
        self._states = states
        self._servers: list[subprocess.Popen[str]] = []

    def start(self, network: Network, workers: Sequence[str], folder: Path) -> dict[str, Any]:
        """See Servers. A state's controller sits beside a worker."""
        log = folder / "servers.log"
        graph = [
            {"name": state, "needs": list(columns) or ["scalar0"], "writes": []}
            for state, columns in self._states.items()
        ]
        shared = {"graph": graph, "token": secrets.token_urlsafe(16)}
        warehouses = [(network.address(name), PORT) for name in self.data]
        beside = {state: workers[i % len(workers)] for i, state in enumerate(self._states)}
        controllers = {
            state: (network.address(name), PORT + i)
            for i, (state, name) in enumerate(beside.items())
        }
        for index, (host, port) in enumerate(warehouses):
            place = {"index": index, "host": host, "port": port, "warehouses": []}
            config = {**shared, **place, "capacity_bytes": CAPACITY_BYTES}
            self._serve("warehouse", network.prefix(self.data[index]), config, log)
        for state, (host, port) in controllers.items():
            place = {"state": state, "host": host, "port": port, "warehouses": warehouses}
            self._serve("controller", network.prefix(beside[state]), {**shared, **place}, log)
        for server in self._servers:
            assert server.stdout is not None, "a server without its output"
            if not server.stdout.readline():
                raise RuntimeError(f"a server of the dock ended:\n{log.read_text()[-2000:]}")
        address = {"token": shared["token"], "warehouses": warehouses, "controllers": controllers}
        return {**address, "shared_memory": "none"}

    def close(self) -> None:
        """See Servers."""
        for server in self._servers:
            server.kill()
            server.wait()
        self._servers.clear()

    def _serve(self, kind: str, prefix: list[str], config: dict[str, Any], log: Path) -> None:
        command = [sys.executable, "-m", "rljob_runtime.dock.serve", kind, "--with-parent"]
        with log.open("ab") as errors:
            server = subprocess.Popen(
                [*prefix, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert server.stdin is not None, "a server without its input"
        server.stdin.write(json.dumps(config))
        server.stdin.close()
        self._servers.append(server)
