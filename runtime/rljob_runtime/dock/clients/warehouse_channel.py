"""A client's connection to a warehouse: over the unix socket and its mapped memory where it can.

Every connection begins over TCP, where the warehouse says which machine it is on and where its
socket lies. On the same machine the client moves over to the socket, shows the token again, and maps
the memory, to read and to write where it may.
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
from rljob_runtime.dock.wire.channel import Channel, Identity
from rljob_runtime.dock.wire.encoding import Outgoing
from rljob_runtime.dock.wire.frames import Frame, MalformedFrame, Message
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
"""Smaller messages go through the socket: that costs less than their first touch of other pages."""


class SharedMemory(StrEnum):
    """Whether bytes are read from the warehouse's memory, as spec.dock.sharedMemory says."""

    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"


class DataPath(NamedTuple):
    """How a client reads from one warehouse. why: it is TCP."""

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

    def part(self, span: Span) -> memoryview:
        """Its bytes, a view. Raises MalformedFrame when they lie outside."""
        start, end = span
        if not 0 <= start <= end <= self.num_bytes:
            raise MalformedFrame(f"bytes {start} to {end} of {self.num_bytes}")
        if self._populated < end:
            self._populate(min(-(-end // POPULATE_BYTES) * POPULATE_BYTES, self.num_bytes))
        return self.view[start:end]

    def _populate(self, end: int) -> None:
        """Map the pages up to there at once, which costs less than a fault at each."""
        size = end - self._populated
        try:
            self._map.madvise(self._populate_pages, self._populated, size)
        except OSError as error:
            log.debug("%d bytes of the arena are mapped as they are met: %s", size, error)
        self._populated = end


class WarehouseChannel(Channel):
    """memory: the warehouse's, None where bytes come over the connection. What is written goes into slabs of
    it, through a second map that nobody else sees.

    Raises DockRefused where shared memory is required and this machine's warehouse is not reached.
    """

    def __init__(
        self,
        *,
        role: str,
        find: Callable[[], DockAddress],
        identity: Identity,
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
        """Say that nothing of these answers is looked at any more; without an answer."""
        if self.memory is memory:
            self.notify(Release(pins=list(pins)))

    def granted(self, slab: GrantedSlab | None) -> None:
        """An answer came with a slab for the next message."""
        if slab is not None:
            self._slab = slab

    def close(self) -> None:
        """See Channel."""
        super().close()
        self.memory = self._writable = self._slab = None

    def _go_local(self, frame: Frame, deadline: float) -> None:
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
            if self._shared_memory is SharedMemory.REQUIRED and not _passing(error):
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
        """Go over to the socket and map the memory."""
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

    def _send(self, message: Message, columns: Outgoing | None, deadline: float) -> None:
        """Columns of some size go into the warehouse's memory, not through the socket."""
        slab = None if columns is None else self._slab_of(columns.num_bytes, deadline)
        if columns is None or slab is None:
            super()._send(message, columns, deadline)
            return
        self._slab = None
        heads = columns.copy_to(slab)
        told = msgspec.structs.replace(message, columns=heads, granted=columns.num_bytes)
        super()._send(told, None, deadline)

    def _slab_of(self, num_bytes: int, deadline: float) -> memoryview | None:
        """Memory for so many bytes; None where they go through the socket."""
        if self._writable is None or num_bytes < SLAB_BYTES:
            return None
        if self._slab is None or self._slab.end - self._slab.start < num_bytes:
            assert self._stream is not None, "ask before connect"
            self._stream.send(AskSlab(num_bytes=num_bytes + num_bytes // 4), (), deadline)
            self._slab = self._receive(deadline).read(SlabGrant).slab
        if self._slab is None:
            return None
        return self._writable.part((self._slab.start, self._slab.start + num_bytes))


def _passing(error: Exception) -> bool:
    """True when a warehouse that ends or starts now explains the error: worth another try."""
    return isinstance(error, ConnectionError | EOFError | TimeoutError)
