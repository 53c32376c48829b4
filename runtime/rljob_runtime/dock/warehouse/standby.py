"""What a warehouse holds for another one: a second store, kept in step by that one's messages.

Nobody reads it but a restarted primary, which takes all of it over.
"""

import logging
from collections.abc import Callable, Iterator

from rljob_runtime.dock.warehouse.changes import change_of
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import Chunk, StoreCopy, add_chunk
from rljob_runtime.dock.wire.frames import Fields, Frame, Kind, MalformedFrame
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
        self._chunks: Iterator[Chunk] = iter(())
        self.answers = {
            Kind.TAKE_OVER: self._take_over,
            Kind.EXPORT: self._export,
            Kind.SEED: self._seed,
            Kind.IMPORT: self._import,
            Kind.FORWARD: self._forward,
        }

    def lost(self, peer: Peer) -> None:
        """A connection is gone; what was held stays for the primary's successor."""
        if peer is self._primary:
            self._primary = None
            self._end_export()

    def _take_over(self, peer: Peer, frame: Frame) -> Reply:
        """The primary starts: its predecessor, if it still lives, is not listened to any more."""
        self._accept(peer, frame)
        if self.store is None or not self.complete:
            return Reply(header={"held": False})
        self._copy = StoreCopy(self.store)
        self._chunks = self._copy.chunks()
        log.info("standby of warehouse/%s: %d rows are taken over", self.of, len(self.store.rows))
        return Reply(header={"held": True, "epoch": self._epoch})

    def _export(self, peer: Peer, frame: Frame) -> Reply:
        """The next chunk; an empty header after the last."""
        self._own(peer)
        chunk = next(self._chunks, None)
        if chunk is None:
            self._end_export()
            return Reply()
        return Reply(header=chunk.header, buffers=chunk.buffers)

    def _seed(self, peer: Peer, frame: Frame) -> Reply:
        """The primary will send all that it holds; what was held is out of date."""
        self._accept(peer, frame)
        self.store, self.complete = self._new_store(), False
        return Reply()

    def _import(self, peer: Peer, frame: Frame) -> Reply:
        """A chunk; the last one, without rows, names the epoch of all that came."""
        store = self._own(peer)
        add_chunk(store, frame.fields, frame.payload)
        if frame.fields.has("epoch"):
            self._epoch, self.complete = frame.fields.text("epoch"), True
        return Reply()

    def _forward(self, peer: Peer, frame: Frame) -> Reply:
        """Carry out what the primary has carried out."""
        store = self._own(peer)
        fields = frame.fields.maps("fields")[0]
        change_of(_kind(frame.fields), fields, frame.payload)(store)
        store.take_notices()  # the primary tells the controllers
        return Reply()

    def _accept(self, peer: Peer, frame: Frame) -> None:
        index = frame.fields.integer("warehouse")
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


def _kind(fields: Fields) -> Kind:
    try:
        return Kind(fields.integer("kind"))
    except ValueError as error:
        raise MalformedFrame(str(error)) from None
