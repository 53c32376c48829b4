"""Run the dock's servers as workers of a run, which are restarted, on the same port where possible.

The servers themselves (`dock/`) do not depend on Ray. A restarted controller rebuilds its state from the
warehouses. A restarted warehouse restores its rows from its standby; without one it is empty, and the
driver repeats the step.
"""

import functools
from collections.abc import Callable
from typing import Any

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.collector import collect_rarely
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.processes.actors.addresses import ServerAddresses, worker_host
from rljob_runtime.processes.hangs.reporter import start_reporter


class WarehouseActor:
    """Run one warehouse server as an actor."""

    def __init__(
        self,
        *,
        index: int,
        graph: list[dict[str, Any]],
        capacity_bytes: int,
        shared_directory: str | None,
        pin_seconds: float,
        warehouses: ServerAddresses | None,
        run: dict[str, Any],
        port: int,
    ) -> None:
        """Start the server. warehouses: all of the dock's, if each row is held by two of them. run:
        see `ControllerActor`."""
        start_reporter(f"warehouse-{index}", DockAddress.from_json(run))
        self._server = WarehouseServer(
            index=index,
            graph=StateGraph.from_json(graph),
            capacity_bytes=capacity_bytes,
            shared_directory=shared_directory,
            pin_seconds=pin_seconds,
            warehouses=_address_lookups(warehouses) if warehouses is not None else (),
            token=run["token"],
            host=worker_host(),
            port=port,
        )
        self._thread = ServerThread(self._server)
        self._address = self._thread.start()
        collect_rarely()

    def address(self) -> tuple[str, int]:
        """Return the address at which it listens."""
        return self._address

    def room(self) -> dict[str, int | bool]:
        """Return its capacity and the peak use since the last call, in bytes. If rows are held twice,
        also return whether its own rows are replicated now, and how often they were not."""
        store = self._server.store
        peak, store.peak_bytes = store.peak_bytes, store.charged_bytes
        room = {"peak_bytes": peak, "capacity_bytes": store.capacity_bytes}
        return {**room, **self._server.replication()}


class ControllerActor:
    """Run one state's controller server as an actor."""

    def __init__(
        self,
        *,
        state: str,
        graph: list[dict[str, Any]],
        warehouses: ServerAddresses,
        lease_seconds: float,
        shared_directory: str | None,
        run: dict[str, Any],
        port: int,
    ) -> None:
        """Start the server. run: a dock's address as JSON, with the run's token and switchboard but no
        servers yet."""
        start_reporter(f"controller-{state}", DockAddress.from_json(run))
        self._thread = ServerThread(
            ControllerServer(
                state=state,
                graph=StateGraph.from_json(graph),
                warehouses=_address_lookups(warehouses),
                lease_seconds=lease_seconds,
                shared_directory=shared_directory,
                token=run["token"],
                host=worker_host(),
                port=port,
            )
        )
        self._address = self._thread.start()
        collect_rarely()

    def address(self) -> tuple[str, int]:
        """Return the address at which it listens."""
        return self._address


def _address_lookups(warehouses: ServerAddresses) -> list[Callable[[], tuple[str, int]]]:
    """Return for each warehouse a function that looks up its current address."""
    return [functools.partial(warehouses.address_of, name) for name in warehouses.latest]
