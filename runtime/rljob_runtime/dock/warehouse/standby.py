"""A warehouse's copy of another one: a second store that follows the other's messages.

Only a restarted primary reads it; it takes over all rows.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from rljob_runtime.dock.warehouse.changes import parse_change
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk
from rljob_runtime.dock.wire.messages import (
    Chunk,
    Export,
    ExportedChunk,
    Forward,
    Import,
    Seed,
    StandbyState,
    TakeOver,
)
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.errors import DockRefused

log = logging.getLogger(__name__)


class Standby:
    """A store with the rows of one other warehouse.

    primary_index: that warehouse's index; None: every primary is refused. new_store: returns an empty store
    with that warehouse's graph and limits.
    """

    def __init__(
        self, *, primary_index: int | None, new_store: Callable[[], WarehouseStore]
    ) -> None:
        self.primary_index = primary_index
        self.store: WarehouseStore | None = None
        self.complete = False
        """False during seeding: an incomplete copy cannot be taken over."""
        self._new_store = new_store
        self._epoch = ""
        self._primary: Peer | None = None
        self._session = ""
        self._superseded: set[str] = set()
        self._copy: StoreCopy | None = None
        self._chunks: Iterator[tuple[Chunk, Sequence[memoryview]]] = iter(())

    def peer_lost(self, peer: Peer) -> None:
        """React to a lost connection; the rows stay for the primary's successor."""
        if peer is self._primary:
            self._primary = None
            self._end_export()

    def take_over(self, peer: Peer, message: TakeOver, _: memoryview) -> Reply:
        """Start the export to a restarted primary; its predecessor, if it still runs, is ignored from now
        on."""
        self._accept(peer, message.warehouse)
        if self.store is None or not self.complete:
            return Reply(message=StandbyState(held=False))
        self._copy = StoreCopy(self.store)
        self._chunks = self._copy.chunks()
        log.info(
            "standby of warehouse/%s: %d rows are taken over",
            self.primary_index,
            self.store.num_rows,
        )
        return Reply(message=StandbyState(held=True, epoch=self._epoch))

    def export(self, peer: Peer, message: Export, _: memoryview) -> Reply:
        """Return the next chunk, None after the last."""
        self._store_of(peer)
        chunk, buffers = next(self._chunks, (None, ()))
        if chunk is None:
            self._end_export()
        return Reply(message=ExportedChunk(chunk=chunk), buffers=buffers)

    def seed(self, peer: Peer, message: Seed, _: memoryview) -> Reply:
        """Start empty: the primary will send its full content, and the old one is out of date."""
        self._accept(peer, message.warehouse)
        self.store, self.complete = self._new_store(), False
        return Reply()

    def take(self, peer: Peer, message: Import, payload: memoryview) -> Reply:
        """Add a chunk; the last message has no rows, and carries the epoch of the content."""
        store = self._store_of(peer)
        if message.chunk is not None:
            add_chunk(store, message.chunk, payload)
        if message.epoch is not None:
            self._epoch, self.complete = message.epoch, True
        return Reply()

    def follow(self, peer: Peer, message: Forward, payload: memoryview) -> Reply:
        """Carry out a change that the primary has carried out."""
        store = self._store_of(peer)
        parse_change(message, payload)(store)
        store.take_notices()  # the primary notifies the controllers
        return Reply()

    def _accept(self, peer: Peer, index: int) -> None:
        if index != self.primary_index:
            raise DockRefused(
                f"this warehouse holds rows for warehouse/{self.primary_index}, not /{index}"
            )
        if peer.session in self._superseded:
            raise DockRefused(f"warehouse/{index} was started again: this one is not it any more")
        if self._session and peer.session != self._session:
            self._superseded.add(self._session)
        self._end_export()
        previous, self._primary, self._session = self._primary, peer, peer.session
        if previous is not None and previous is not peer:
            previous.close()

    def _end_export(self) -> None:
        if self._copy is not None:
            self._copy.release()
        self._copy, self._chunks = None, iter(())

    def _store_of(self, peer: Peer) -> WarehouseStore:
        if peer is not self._primary or self.store is None:
            raise DockRefused("another connection keeps this standby, or it was not seeded")
        return self.store
