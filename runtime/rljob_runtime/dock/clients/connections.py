"""A client's connections: one channel for each server, opened at its first use, and the data paths."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.transport import WarehouseTransport
from rljob_runtime.dock.clients.warehouse_channel import DataPath, SharedMemory, WarehouseChannel
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.frames import DockMessage, Frame
from rljob_runtime.dock.wire.messages import AskWarehouseStats, Request, WarehouseWelcome

T = TypeVar("T")
A = TypeVar("A", bound=DockMessage)

UNKNOWN_BYTES = 1 << 62


class Connections:
    """Connections to every warehouse and controller of a dock, for one thread at a time.

    timeout_seconds: of requests without a timeout.
    """

    def __init__(
        self,
        find: Callable[[], DockAddress],
        *,
        identity: ClientIdentity,
        timeout_seconds: float,
        shared_memory: SharedMemory,
    ) -> None:
        self.find = find
        self._identity, self._timeout = identity, timeout_seconds
        self._capacity_bytes = UNKNOWN_BYTES
        self._warehouses = [
            WarehouseChannel(
                role=f"warehouse/{index}",
                find=find,
                identity=identity,
                on_connect=self._store_capacity,
                shared_memory=shared_memory,
            )
            for index in range(len(find().warehouses))
        ]
        self._channels: dict[str, Channel] = {c.role: c for c in self._warehouses}
        self.transports = [WarehouseTransport(channel) for channel in self._warehouses]
        self._pool: ThreadPoolExecutor | None = None

    @property
    def warehouse_roles(self) -> list[str]:
        """The names of the warehouses, in order."""
        return [channel.role for channel in self._warehouses]

    @property
    def controller_roles(self) -> list[str]:
        """The names of the controllers."""
        return [f"controller/{state}" for state in self.find().controllers]

    @property
    def data_paths(self) -> dict[int, DataPath]:
        """The data path to each warehouse at the last connection."""
        paths = {i: channel.data_path for i, channel in enumerate(self._warehouses)}
        return {i: path for i, path in paths.items() if path is not None}

    @property
    def chunk_bytes(self) -> int:
        """The size of new rows in one message, small compared with a warehouse."""
        if self._capacity_bytes == UNKNOWN_BYTES:
            self.ask("warehouse/0", AskWarehouseStats())
        return max(1, min(8 << 20, self._capacity_bytes // 16))

    def ask(self, role: str, message: Request[A], timeout_seconds: float | None = None) -> A:
        """Send a request without column bytes."""
        if role not in self._channels:
            self._channels[role] = Channel(role=role, find=self.find, identity=self._identity)
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        return self._channels[role].ask(message, timeout_seconds=timeout)

    def each(self, call: Callable[[int], T], warehouses: Iterable[int]) -> list[T]:
        """Call for each warehouse, in parallel when there are several."""
        indices = list(warehouses)
        if len(indices) < 2:
            return [call(index) for index in indices]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(16, len(self._warehouses)), "dock-client")
        futures = [self._pool.submit(call, index) for index in indices]
        wait(futures)  # wait for all, also after an error: a channel is for one thread at a time
        return [future.result() for future in futures]

    def close(self) -> None:
        """Disconnect from every server."""
        if self._pool is not None:
            self._pool.shutdown()
        for channel in self._channels.values():
            channel.close()

    def _store_capacity(self, channel: Channel, frame: Frame) -> None:
        self._capacity_bytes = min(self._capacity_bytes, frame.read(WarehouseWelcome).capacity)
