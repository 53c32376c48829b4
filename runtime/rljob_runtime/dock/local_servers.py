"""A complete dock on this machine, one process for each server: for tests, benchmarks and use without a
cluster."""

import json
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.ports import ReservedPorts
from rljob_runtime.errors import DockError

LISTEN_SECONDS = 120.0
STOP_SECONDS = 5.0


class LocalDock:
    """Starts the warehouses and one controller for each state; a context manager.

    states: the dataflow graph. replicas=2: each row in two warehouses. capacity: bytes of each warehouse.
    shared_memory: auto, required or none. `address` is for clients.
    """

    def __init__(
        self,
        states: Sequence[State],
        *,
        warehouses: int = 1,
        replicas: int = 1,
        capacity: int = 256 << 20,
        lease_seconds: float = 600.0,
        derived_share: float = 0.25,
        shared_memory: str = "auto",
    ) -> None:
        if replicas == 2 and warehouses < 2:
            raise ValueError(f"replicas=2 needs 2 warehouses or more, there is {warehouses}")
        graph = StateGraph(states=tuple(states))
        token = secrets.token_urlsafe(32)
        self._ports = ReservedPorts(warehouses + len(states))
        addresses = [("127.0.0.1", port) for port in self._ports]
        self.address = DockAddress(
            token=token,
            warehouses=tuple(addresses[:warehouses]),
            controllers=dict(zip(graph.names, addresses[warehouses:], strict=True)),
            shared_memory=shared_memory,
        )
        self._sockets = OwnedFolder("dock")
        shared = {
            "graph": graph.to_json(),
            "token": token,
            "host": "127.0.0.1",
            "shared_directory": None if shared_memory == "none" else str(self._sockets.path),
        }
        self._configs: dict[str, dict[str, Any]] = {}
        for i, (_, port) in enumerate(self.address.warehouses):
            limits = {
                "warehouses": self.address.warehouses if replicas == 2 else (),
                "capacity_bytes": capacity,
                "derived_share": derived_share,
                "pin_seconds": lease_seconds,
            }
            self._configs[f"warehouse/{i}"] = {**shared, **limits, "index": i, "port": port}
        for state, (_, port) in self.address.controllers.items():
            self._configs[f"controller/{state}"] = {
                **shared,
                "state": state,
                "port": port,
                "warehouses": self.address.warehouses,
                "lease_seconds": lease_seconds,
            }
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._clients: list[DockClient] = []

    def __enter__(self) -> Self:
        try:
            for role in self._configs:
                self._launch(role)
            for role in self._configs:
                self._await(role)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def client(self, state: str, owner: str, **options: Any) -> DockClient:
        """Return a client that is closed with the dock. options: further arguments of DockClient."""
        client = DockClient(self.address, state=state, owner=owner, **options)
        self._clients.append(client)
        return client

    def kill(self, role: str) -> None:
        """Kill a server, e.g. "controller/reward"; its memory is lost."""
        self._processes[role].kill()
        self._processes[role].wait(STOP_SECONDS)

    def start(self, role: str) -> None:
        """Restart a killed server on its port. Raises DockError when it does not listen."""
        assert self._processes[role].poll() is not None, f"{role} runs; kill it first"
        self._launch(role)
        self._await(role)

    def close(self) -> None:
        """Close the clients and stop every server."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
            assert process.stdout is not None, "a server without its output"
            process.stdout.close()
        self._processes.clear()
        self._sockets.close()
        self._ports.close()

    def _launch(self, role: str) -> None:
        kind = role.partition("/")[0]
        process = subprocess.Popen(
            [sys.executable, "-m", "rljob_runtime.dock.serve", kind, "--with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None, "a server without its input"
        process.stdin.write(json.dumps(self._configs[role]))
        process.stdin.close()
        earlier = self._processes.get(role)
        if earlier is not None and earlier.stdout is not None:
            earlier.stdout.close()
        self._processes[role] = process

    def _await(self, role: str) -> None:
        process = self._processes[role]
        assert process.stdout is not None, "a server without its output"
        readable, _, _ = select.select([process.stdout], [], [], LISTEN_SECONDS)
        if not readable:
            raise DockError(f"{role} did not listen within {LISTEN_SECONDS:g} s")
        if not process.stdout.readline():
            code = process.wait(STOP_SECONDS)
            raise DockError(f"{role} ended with exit code {code} before it listened")
