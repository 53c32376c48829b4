"""The dock's servers as workers of a run, which are started again, on the same port where it can be.

The servers themselves (`dock/`) know nothing of Ray. A restarted controller learns everything anew
from the warehouses; a restarted warehouse takes its rows over from its standby, or is empty, and the
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
from rljob_runtime.processes.actors.addresses import Servers, own_host
from rljob_runtime.processes.hangs.reporter import start_reporter


class WarehouseActor:
    """One warehouse."""

    def __init__(
        self,
        *,
        index: int,
        graph: list[dict[str, Any]],
        capacity_bytes: int,
        shared_directory: str | None,
        pin_seconds: float,
        warehouses: Servers | None,
        run: dict[str, Any],
        port: int,
    ) -> None:
        """warehouses: all of the dock's, where each row is held by two of them. run: as `ControllerActor`."""
        start_reporter(f"warehouse-{index}", DockAddress.from_json(run))
        self._server = WarehouseServer(
            index=index,
            graph=StateGraph.from_json(graph),
            capacity_bytes=capacity_bytes,
            shared_directory=shared_directory,
            pin_seconds=pin_seconds,
            warehouses=_places(warehouses) if warehouses is not None else (),
            token=run["token"],
            host=own_host(),
            port=port,
        )
        self._thread = ServerThread(self._server)
        self._address = self._thread.start()
        collect_rarely()

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._address

    def room(self) -> dict[str, int | bool]:
        """Capacity, and the most that was used since the last call, in bytes; where rows are held twice,
        whether its own are now, and how often they were not."""
        store = self._server.store
        peak, store.peak_bytes = store.peak_bytes, store.charged_bytes
        room = {"peak_bytes": peak, "capacity_bytes": store.capacity_bytes}
        return {**room, **self._server.replication()}


class ControllerActor:
    """One state's controller."""

    def __init__(
        self,
        *,
        state: str,
        graph: list[dict[str, Any]],
        warehouses: Servers,
        lease_seconds: float,
        shared_directory: str | None,
        run: dict[str, Any],
        port: int,
    ) -> None:
        """run: a dock's address as JSON, with the run's token and switchboard and no servers yet."""
        start_reporter(f"controller-{state}", DockAddress.from_json(run))
        self._thread = ServerThread(
            ControllerServer(
                state=state,
                graph=StateGraph.from_json(graph),
                warehouses=_places(warehouses),
                lease_seconds=lease_seconds,
                shared_directory=shared_directory,
                token=run["token"],
                host=own_host(),
                port=port,
            )
        )
        self._address = self._thread.start()
        collect_rarely()

    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._address


def _places(warehouses: Servers) -> list[Callable[[], tuple[str, int]]]:
    """Where each warehouse is at the moment of a call."""
    return [functools.partial(warehouses.where, name) for name in warehouses.last]
