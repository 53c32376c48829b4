"""The warehouse server: `WarehouseStore` behind a socket, with its broadcast and its back pressure.

One process a node. Producers of new rows are parked while it is full; every change is broadcast to
the controllers that subscribed.
"""

import asyncio
import secrets
from dataclasses import asdict

from rljob_runtime.dock.broadcast import Broadcaster
from rljob_runtime.dock.columns import decode_columns
from rljob_runtime.dock.frames import Frame, Kind, MalformedFrame
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.memory import Memory
from rljob_runtime.dock.notices import encode_snapshot
from rljob_runtime.dock.parking import Parking
from rljob_runtime.dock.peer import Answer, Peer, Reply
from rljob_runtime.dock.put_rules import row_head
from rljob_runtime.dock.reads import ReadDesk
from rljob_runtime.dock.server import DockServer, optional_integer
from rljob_runtime.dock.store import WarehouseStore
from rljob_runtime.errors import DockFull, DockRefused

STAGING_BYTES = 16 << 20
"""Of the memory where an attached client puts the columns of one message; only what it uses is taken."""
PREFAULT_BYTES = 16 << 20
"""Of a new warehouse's memory; later twice as much as was ever used."""


class WarehouseServer(DockServer):
    """Serves one warehouse.

    index: its place in the dock's list. capacity_bytes: what it may hold; see WarehouseStore.
    shared_directory: see DockServer; only over its socket do readers map the memory.
    pin_seconds: how long such a reader may look at what it was answered.
    """

    def __init__(
        self,
        *,
        index: int,
        graph: StateGraph,
        capacity_bytes: int,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        derived_share: float = 0.25,
        shared_directory: str | None = None,
        pin_seconds: float = 600.0,
    ) -> None:
        super().__init__(
            role=f"warehouse/{index}",
            token=token,
            host=host,
            port=port,
            shared_directory=shared_directory,
        )
        self.store = WarehouseStore(
            graph=graph,
            capacity_bytes=capacity_bytes,
            derived_share=derived_share,
            memory=Memory(capacity_bytes, shared=True),
        )
        self.index = index
        self.epoch = secrets.token_hex(8)
        self._broadcast = Broadcaster()
        self._writes = Parking(changed=self._changed, full=self._full)
        self._puts = Parking(changed=self._changed, full=self._full)
        self._reads = ReadDesk(
            cells=self.store.cells,
            lookup=self.store.read,
            freed=self._changed,
            pin_seconds=pin_seconds,
        )
        if not self.store.cells.memory.shareable:
            self._shared_directory, self._no_socket = None, "its system has no memfd_create"
        self._prefault: asyncio.Future[None] | None = None
        self._answers = {
            Kind.PUT_ROWS: self._put_rows,
            Kind.WRITE: self._write,
            Kind.READ: self._read,
            Kind.ATTACH: self._attach,
            Kind.RELEASE: self._release,
            Kind.DROP_BATCH: self._drop_batch,
            Kind.SUBSCRIBE: self._subscribe,
            Kind.STATS: self._stats,
        }

    async def start(self) -> tuple[str, int]:
        """See DockServer."""
        place = await super().start()
        self._prefault_ahead()
        return place

    async def stop(self) -> None:
        """See DockServer."""
        await super().stop()
        self.store.cells.memory.close()

    def welcome(self) -> dict[str, object]:
        """A peer learns the epoch, how large a put may be, and how long it may look at an answer."""
        return {
            **super().welcome(),
            "epoch": self.epoch,
            "capacity": self.store.capacity_bytes,
            "pin_seconds": self._reads.pin_seconds,
        }

    def lost(self, peer: Peer) -> None:
        """A subscriber or a client left."""
        self._broadcast.forget(peer)
        self._reads.lost(peer)
        if peer.staging is not None:
            peer.staging.close()

    def _put_rows(self, peer: Peer, frame: Frame) -> Answer:
        fields = frame.fields
        entries, group_entries = fields.maps("columns"), fields.maps("group_columns")
        columns = decode_columns([*entries, *group_entries], _payload(peer, frame))
        group_columns = {e.text("name"): columns.pop(e.text("name")) for e in group_entries}
        heads = [row_head(item) for item in fields.items("rows")]
        batch, total, states = fields.text("batch"), fields.integer("total"), fields.texts("states")
        if total < 0 or not heads:
            raise MalformedFrame(f"put of {len(heads)} rows with total {total}")

        def attempt() -> Reply:
            new = self.store.put_rows(
                batch,
                total=total,
                states=states,
                heads=heads,
                columns=columns,
                group_columns=group_columns,
            )
            return Reply(header={"stored": new})

        return self._puts.admit(attempt, fields.number("timeout"))

    def _write(self, peer: Peer, frame: Frame) -> Answer:
        fields = frame.fields
        columns = decode_columns(fields.maps("columns"), _payload(peer, frame))
        state, lease, uids = fields.text("state"), fields.text("lease"), fields.texts("uids")
        version = optional_integer(fields, "version")

        def attempt() -> Reply:
            written = self.store.write(
                state=state, lease=lease, uids=uids, columns=columns, version=version
            )
            return Reply(header=asdict(written))

        return self._writes.admit(attempt, fields.number("timeout"))

    def _read(self, peer: Peer, frame: Frame) -> Reply:
        return self._reads.answer(peer, frame.fields.texts("uids"), frame.fields.texts("columns"))

    def _attach(self, peer: Peer, frame: Frame) -> Reply:
        memory = self.store.cells.memory
        if not (peer.local and memory.shareable):
            raise DockRefused(f"{self.role} gives its memory to peers on its unix socket only")
        peer.staging = Memory(STAGING_BYTES, shared=True, for_writers=True)
        descriptors = (memory.open_read_only(), peer.staging.open_writable())
        return Reply(header={"size": memory.num_bytes}, descriptors=descriptors)

    def _release(self, peer: Peer, frame: Frame) -> None:
        self._reads.release(peer, frame.fields.integers("pins"))

    def _drop_batch(self, peer: Peer, frame: Frame) -> Reply:
        freed = self.store.drop_batch(frame.fields.text("batch"))
        self._changed()
        return Reply(header={"freed": freed})

    def _subscribe(self, peer: Peer, frame: Frame) -> Reply:
        state, needs = frame.fields.text("state"), frozenset(frame.fields.texts("needs"))
        self._broadcast.subscribe(peer, state, needs)
        return Reply(header=encode_snapshot(self.store, state=state, needs=needs))

    def _stats(self, peer: Peer, frame: Frame) -> Reply:
        store = self.store
        return Reply(
            header={
                "role": self.role,
                "rows": len(store.rows),
                "bytes": store.charged_bytes,
                "capacity": store.capacity_bytes,
                "retained": store.cells.retained_bytes,
                "pins": self._reads.num_pins,
                "expired_pins": self._reads.expired_pins,
                "attached": sum(p.attached for p in self.peers),
                "waiting": len(self._puts) + len(self._writes),
                "refused": dict(self.refused),
                "requests": self.requests,
                "subscribers": len(self._broadcast),
                "unacknowledged": store.unacknowledged(),
                "batches": {n: len(b.live) for n, b in store.batches.items() if b.live},
            }
        )

    def _full(self, waited_seconds: float) -> DockFull:
        store, stuck = self.store, self.store.stuck_state()
        who = "no row is ready for any state"
        if stuck is not None:
            who = f"state {stuck[0]} has not acknowledged {stuck[1]} rows that are ready for it"
        return DockFull(
            f"{self.role} stayed full for {waited_seconds:.3g} s: {store.charged_bytes} of "
            f"{store.capacity_bytes} bytes hold {len(store.rows)} rows, and readers hold "
            f"{store.cells.retained_bytes} bytes of freed ones; {who}; find out why it does not go "
            "on, or raise spec.dock.capacity"
        )

    def _changed(self) -> None:
        """After a change: let parked messages in as far as there is room, then broadcast."""
        self._writes.let_in()
        self._puts.let_in()
        self._prefault_ahead()
        self._broadcast.publish(self.store.take_notices())

    def _prefault_ahead(self) -> None:
        """Make memory present in the background before it is written; what never is used never is."""
        memory, used = self.store.cells.memory, self.store.cells.arena.high_water
        wanted = min(memory.num_bytes, max(PREFAULT_BYTES, 2 * used))
        idle = self._prefault is None or self._prefault.done()
        if idle and memory.populated_bytes < wanted:
            loop = asyncio.get_running_loop()
            self._prefault = loop.run_in_executor(None, memory.populate, wanted)


def _payload(peer: Peer, frame: Frame) -> memoryview:
    """The columns of a message: behind its header, or in the memory that the peer writes to.

    The peer waits for its answer before it writes there again; memory of a lost connection is never
    used for another.
    """
    if not frame.fields.has("staged"):
        return frame.payload
    staged = frame.fields.integer("staged")
    if peer.staging is None or len(frame.payload) or not 0 <= staged <= peer.staging.num_bytes:
        raise MalformedFrame(f"{staged} staged bytes, and there is no such room")
    return peer.staging.view[:staged]
