"""A client's connection to a warehouse: over the unix socket and its mapped memory where possible.

Every connection starts over TCP; the welcome has the warehouse's machine and the path of its socket. On the
same machine the client switches to the socket, sends the token again, and maps the memory, for reading and
where possible for writing.
"""

import logging
import mmap
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire import unix
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.encoding import OutgoingColumns
from rljob_runtime.dock.wire.frames import DockMessage, Frame, MalformedFrame
from rljob_runtime.dock.wire.memory import MADV_POPULATE_READ, MADV_POPULATE_WRITE, Span
from rljob_runtime.dock.wire.messages import (
    AskSlab,
    Attach,
    GrantedSlab,
    Release,
    SlabGrant,
    WarehouseWelcome,
)
from rljob_runtime.errors import DockError, DockRefused

log = logging.getLogger(__name__)

POPULATE_BYTES = 1 << 20
SLAB_BYTES = 32 << 10
"""Smaller messages go through the socket, which costs less than touching new pages."""


class SharedMemory(StrEnum):
    """Whether bytes are read from the warehouse's memory, as configured by spec.dock.sharedMemory."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


class DataPath(NamedTuple):
    """The data path to one warehouse. why: reason for TCP."""

    shared: bool
    why: str = ""


class MemoryMap:
    """A warehouse's memory in this process, read-only unless it is `writable`."""

    def __init__(self, descriptor: int, pin_seconds: float, *, writable: bool = False) -> None:
        self.pin_seconds = pin_seconds
        self.num_bytes = os.fstat(descriptor).st_size
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._map = mmap.mmap(descriptor, self.num_bytes, mmap.MAP_SHARED, access)
        self._populate_pages = MADV_POPULATE_WRITE if writable else MADV_POPULATE_READ
        self._populated = 0
        self.view = memoryview(self._map)

    def slice_of(self, span: Span) -> memoryview:
        """Return a view of the span. Raises MalformedFrame when it is outside."""
        start, end = span
        if not 0 <= start <= end <= self.num_bytes:
            raise MalformedFrame(f"bytes {start} to {end} of {self.num_bytes}")
        if self._populated < end:
            self._populate(min(-(-end // POPULATE_BYTES) * POPULATE_BYTES, self.num_bytes))
        return self.view[start:end]

    def _populate(self, end: int) -> None:
        """Map the pages up to `end` in one step, which costs less than a fault at each."""
        size = end - self._populated
        try:
            self._map.madvise(self._populate_pages, self._populated, size)
        except OSError as error:
            log.debug("%d bytes of the arena are mapped as they are met: %s", size, error)
        self._populated = end


class WarehouseChannel(Channel):
    """A channel to a warehouse.

    memory: the warehouse's, None where bytes are sent over the connection. Columns are written into slabs of
    it, through a second, private map. Raises DockRefused where shared memory is required and the warehouse of
    this machine is not reached.
    """

    def __init__(
        self,
        *,
        role: str,
        find: Callable[[], DockAddress],
        identity: ClientIdentity,
        on_connect: Callable[[Channel, Frame], None],
        shared_memory: SharedMemory,
    ) -> None:
        super().__init__(role=role, find=find, identity=identity, on_connect=on_connect)
        self.memory: MemoryMap | None = None
        self._writable: MemoryMap | None = None
        self._slab: GrantedSlab | None = None
        self.data_path: DataPath | None = None
        self._shared_memory = shared_memory

    def release(self, memory: MemoryMap, pins: Sequence[int]) -> None:
        """Notify the warehouse that these pins are not used any more; there is no answer."""
        if self.memory is memory:
            self.notify(Release(pins=list(pins)))

    def keep_grant(self, slab: GrantedSlab | None) -> None:
        """Store the slab that an answer granted for the next message."""
        if slab is not None:
            self._slab = slab

    def close(self) -> None:
        """Close the connection and the maps."""
        super().close()
        self.memory = self._writable = self._slab = None

    def _use_local_path(self, frame: Frame, deadline: float) -> None:
        path = self._choose_path(frame.read(WarehouseWelcome), deadline)
        if path != self.data_path:
            log.info(
                "%s: data over %s%s",
                self.role,
                "shared memory" if path.shared else "TCP: ",
                path.why,
            )
        self.data_path = path

    def _choose_path(self, welcome: WarehouseWelcome, deadline: float) -> DataPath:
        if self._shared_memory is SharedMemory.NONE:
            return DataPath(False, "spec.dock.sharedMemory is none")
        if welcome.machine != unix.machine_id():
            return DataPath(False, "the warehouse is on another machine")
        path = welcome.socket
        try:
            if not path:
                raise FileNotFoundError(None, welcome.no_socket)
            self._attach(Path(path), welcome, deadline)
        except (OSError, EOFError, MalformedFrame, DockError) as error:
            why = getattr(error, "strerror", None) or str(error)
            if self._shared_memory is SharedMemory.REQUIRED and not _is_transient(error):
                raise DockRefused(
                    f"{self.role} is on this machine, but its memory is not reached through "
                    f"{path or 'a socket'}: {why}; spec.dock.sharedMemory is required: mount one "
                    "folder in the pods of the worker and the warehouse, name it in "
                    "RLJOB_DOCK_DIRECTORY, or choose auto"
                ) from error
            if self._shared_memory is SharedMemory.REQUIRED:
                raise
            return DataPath(False, f"{path or 'no socket'}: {why}")
        return DataPath(True)

    def _attach(self, path: Path, welcome: WarehouseWelcome, deadline: float) -> None:
        """Switch to the socket and map the memory."""
        with self._over_socket(path, deadline) as local:
            assert self._stream is not None, "attach before connect"
            if local.read(WarehouseWelcome).epoch != welcome.epoch:
                raise DockRefused("another warehouse listens there")
            self._stream.send(Attach(), (), deadline)
            to_read, to_write = self._receive_descriptors(2, deadline)
            try:
                self.memory = MemoryMap(to_read, welcome.pin_seconds)
                self._writable = MemoryMap(to_write, welcome.pin_seconds, writable=True)
            finally:
                os.close(to_read)
                os.close(to_write)

    def _send(self, message: DockMessage, columns: OutgoingColumns | None, deadline: float) -> None:
        """Send a message; larger columns are written into the warehouse's memory, not through the socket."""
        slab = None if columns is None else self._slab_for(columns.num_bytes, deadline)
        if columns is None or slab is None:
            super()._send(message, columns, deadline)
            return
        self._slab = None
        heads = columns.copy_to(slab)
        slab_message = msgspec.structs.replace(message, columns=heads, granted=columns.num_bytes)
        super()._send(slab_message, None, deadline)

    def _slab_for(self, num_bytes: int, deadline: float) -> memoryview | None:
        """Return memory for so many bytes; None where they go through the socket."""
        if self._writable is None or num_bytes < SLAB_BYTES:
            return None
        if self._slab is None or self._slab.end - self._slab.start < num_bytes:
            assert self._stream is not None, "ask before connect"
            self._stream.send(AskSlab(num_bytes=num_bytes + num_bytes // 4), (), deadline)
            self._slab = self._receive(deadline).read(SlabGrant).slab
        if self._slab is None:
            return None
        return self._writable.slice_of((self._slab.start, self._slab.start + num_bytes))


def _is_transient(error: Exception) -> bool:
    """Return True when a warehouse that stops or starts explains the error: another attempt may succeed."""
    return isinstance(error, ConnectionError | EOFError | TimeoutError)
