"""What a warehouse holds for another one: a second store, kept in step by that one's messages.

Nobody reads it but a restarted primary, which takes all of it over.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from rljob_runtime.dock.warehouse.changes import change_of
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk
from rljob_runtime.dock.wire.messages import (
    Chunk,
    Export,
    Exported,
    Forward,
    Held,
    Import,
    Seed,
    TakeOver,
)
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.errors import DockRefused

log = logging.getLogger(__name__)


class Standby:
    """Holds the rows of one other warehouse. of: its index; None: of none, every primary is refused.

    new_store: an empty store with that warehouse's graph and limits.
    """

    def __init__(self, *, of: int | None, new_store: Callable[[], WarehouseStore]) -> None:
        self.of = of
        self.store: WarehouseStore | None = None
        self.complete = False
        """False while it is being seeded: nothing can be taken over from a part."""
        self._new_store = new_store
        self._epoch = ""
        self._primary: Peer | None = None
        self._session = ""
        self._superseded: set[str] = set()
        self._copy: StoreCopy | None = None
        self._chunks: Iterator[tuple[Chunk, Sequence[memoryview]]] = iter(())

    def lost(self, peer: Peer) -> None:
        """A connection is gone; what was held stays for the primary's successor."""
        if peer is self._primary:
            self._primary = None
            self._end_export()

    def take_over(self, peer: Peer, message: TakeOver, _: memoryview) -> Reply:
        """The primary starts: its predecessor, if it still lives, is not listened to any more."""
        self._accept(peer, message.warehouse)
        if self.store is None or not self.complete:
            return Reply(message=Held(held=False))
        self._copy = StoreCopy(self.store)
        self._chunks = self._copy.chunks()
        log.info("standby of warehouse/%s: %d rows are taken over", self.of, self.store.num_rows)
        return Reply(message=Held(held=True, epoch=self._epoch))

    def export(self, peer: Peer, message: Export, _: memoryview) -> Reply:
        """The next chunk; none after the last."""
        self._own(peer)
        chunk, buffers = next(self._chunks, (None, ()))
        if chunk is None:
            self._end_export()
        return Reply(message=Exported(chunk=chunk), buffers=buffers)

    def seed(self, peer: Peer, message: Seed, _: memoryview) -> Reply:
        """The primary will send all that it holds; what was held is out of date."""
        self._accept(peer, message.warehouse)
        self.store, self.complete = self._new_store(), False
        return Reply()

    def take(self, peer: Peer, message: Import, payload: memoryview) -> Reply:
        """A chunk; the last one, without rows, names the epoch of all that came."""
        store = self._own(peer)
        if message.chunk is not None:
            add_chunk(store, message.chunk, payload)
        if message.epoch is not None:
            self._epoch, self.complete = message.epoch, True
        return Reply()

    def follow(self, peer: Peer, message: Forward, payload: memoryview) -> Reply:
        """Carry out what the primary has carried out."""
        store = self._own(peer)
        change_of(message, payload)(store)
        store.take_notices()  # the primary tells the controllers
        return Reply()

    def _accept(self, peer: Peer, index: int) -> None:
        if index != self.of:
            raise DockRefused(f"this warehouse holds rows for warehouse/{self.of}, not /{index}")
        if peer.session in self._superseded:
            raise DockRefused(f"warehouse/{index} was started again: this one is not it any more")
        if self._session and peer.session != self._session:
            self._superseded.add(self._session)
        self._end_export()
        old, self._primary, self._session = self._primary, peer, peer.session
        if old is not None and old is not peer:
            old.close()

    def _end_export(self) -> None:
        if self._copy is not None:
            self._copy.release()
        self._copy, self._chunks = None, iter(())

    def _own(self, peer: Peer) -> WarehouseStore:
        if peer is not self._primary or self.store is None:
            raise DockRefused("another connection keeps this standby, or it was not seeded")
        return self.store
