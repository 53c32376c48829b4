"""The warehouse server: `WarehouseStore` behind a socket, with its broadcast and its back pressure.

There is one process a node. Producers of new rows are parked while it is full; every change is broadcast to
the controllers that subscribed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.warehouse.broadcast import Broadcaster
from rljob_runtime.dock.warehouse.changes import parse_change
from rljob_runtime.dock.warehouse.epoch import is_behind
from rljob_runtime.dock.warehouse.granted import GRANTABLE_BYTES, GrantedSlabs
from rljob_runtime.dock.warehouse.notices import snapshot_for
from rljob_runtime.dock.warehouse.parking import Parking
from rljob_runtime.dock.warehouse.reads import ReadDesk
from rljob_runtime.dock.warehouse.slabs import GrantedSpan
from rljob_runtime.dock.warehouse.standby import Standby
from rljob_runtime.dock.warehouse.standby_link import ServerAddress, StandbyLink
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_inspection import inspection
from rljob_runtime.dock.wire.memory import WarehouseMemory
from rljob_runtime.dock.wire.messages import (
    AskSlab,
    AskWarehouseStats,
    Attach,
    DropBatch,
    Export,
    Forward,
    Hello,
    Import,
    Inspect,
    Inspection,
    PutRows,
    Read,
    Release,
    Seed,
    SlabGrant,
    Subscribe,
    TakeOver,
    WarehouseStats,
    WarehouseWelcome,
    Write,
)
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply
from rljob_runtime.dock.wire.wire_server import DockServer
from rljob_runtime.errors import DockFull, DockRefused

log = logging.getLogger(__name__)

PREFAULT_BYTES = 16 << 20
"""Memory that a new warehouse populates; later it is twice the memory that was ever used."""


class WarehouseServer(DockServer):
    """A server of one warehouse.

    index: its index in the dock's list. capacity_bytes: its capacity; see WarehouseStore. shared_directory:
    see DockServer; readers map the memory only over its socket. pin_seconds: how long such a reader may use
    an answer. warehouses: addresses of all the dock's warehouses in order, this one included: the next one
    then stores the rows too; empty: rows are stored once.
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
        warehouses: Sequence[ServerAddress] = (),
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
            memory=WarehouseMemory(capacity_bytes + GRANTABLE_BYTES, shared=True),
            grantable_bytes=GRANTABLE_BYTES,
        )
        self._granted = GrantedSlabs(self.store.slabs)
        self.index = index
        self._warehouses = warehouses
        self._standby = Standby(
            primary_index=(index - 1) % len(warehouses) if warehouses else None,
            new_store=lambda: WarehouseStore(
                graph=graph, capacity_bytes=capacity_bytes, derived_share=derived_share
            ),
        )
        holder = (index + 1) % len(warehouses) if warehouses else index
        self._link = StandbyLink(
            self.store,
            index=index,
            holder=holder,
            address=warehouses[holder] if warehouses else None,
            token=token,
            on_alone=lambda: self._broadcast.announce(self.epoch),
            on_room=self._changed,
        )
        self._broadcast = Broadcaster()
        self._writes = Parking(changed=self._changed, full=self._full)
        self._puts = Parking(changed=self._changed, full=self._full)
        self._reads = ReadDesk(
            slabs=self.store.slabs,
            lookup=self.store.read,
            freed=self._changed,
            pin_seconds=pin_seconds,
        )
        if not self.store.slabs.memory.shareable:
            self._shared_directory, self._no_socket = None, "its system has no memfd_create"
        self._prefault: asyncio.Future[None] | None = None
        self.answer(PutRows, self._put_rows)
        self.answer(Write, self._write)
        self.answer(Read, self._read)
        self.answer(Attach, self._attach)
        self.answer(Release, self._release)
        self.answer(AskSlab, self._ask_slab)
        self.answer(DropBatch, self._drop_batch)
        self.answer(Subscribe, self._subscribe)
        self.answer(AskWarehouseStats, self._stats)
        self.answer(Inspect, self._inspect)
        self.answer(TakeOver, self._standby.take_over)
        self.answer(Export, self._standby.export)
        self.answer(Seed, self._standby.seed)
        self.answer(Import, self._standby.take)
        self.answer(Forward, self._standby.follow)

    @property
    def epoch(self) -> str:
        """The epoch of the rows; it changes after a loss."""
        return self._link.epoch

    async def start(self) -> tuple[str, int]:
        """Start like DockServer. Clients are answered once the standby's content is known."""
        address = await super().start()
        self._link.start()
        self._prefault_ahead()
        return address

    async def stop(self) -> None:
        """Stop the standby link and the server, and free the memory."""
        await self._link.stop()
        await super().stop()
        self.store.slabs.memory.close()

    def welcome(self) -> WarehouseWelcome:
        """Return the welcome: the epoch, the maximum size of a put, and how long an answer may be used."""
        return WarehouseWelcome(
            **msgspec.structs.asdict(super().welcome()),
            epoch=self.epoch,
            capacity=self.store.capacity_bytes,
            pin_seconds=self._reads.pin_seconds,
        )

    def greet(self, hello: Hello) -> Answer:
        """Greet a peer, after the standby link is ready unless the peer is a standby link itself."""
        waits = not (self._link.ready.is_set() or hello.standby)
        return self._greet_later(hello) if waits else super().greet(hello)

    def peer_lost(self, peer: Peer) -> None:
        """Release what a subscriber or client held when its connection is gone."""
        self._broadcast.forget(peer)
        self._reads.peer_lost(peer)
        self._standby.peer_lost(peer)
        self._granted.peer_lost(peer)

    async def _greet_later(self, hello: Hello) -> Reply:
        await self._link.ready.wait()
        return Reply(message=self.welcome())

    def _put_rows(self, peer: Peer, message: PutRows, payload: memoryview) -> Answer:
        return self._carry_out(peer, message, payload, Forward(put=message), self._puts)

    def _write(self, peer: Peer, message: Write, payload: memoryview) -> Answer:
        return self._carry_out(peer, message, payload, Forward(write=message), self._writes)

    def _carry_out(
        self,
        peer: Peer,
        message: PutRows | Write,
        payload: memoryview,
        change: Forward,
        parking: Parking,
    ) -> Answer:
        def carry_out(columns: memoryview, grant: GrantedSpan | None) -> Answer:
            return parking.admit(self._attempt(change, columns, grant), message.timeout)

        return self._after_replication(self._granted.serve(peer, message, payload, carry_out))

    def _drop_batch(self, peer: Peer, message: DropBatch, payload: memoryview) -> Answer:
        reply = self._attempt(Forward(drop=message), payload)()
        self._changed()
        return self._after_replication(reply)

    def _attempt(
        self, message: Forward, payload: memoryview, grant: GrantedSpan | None = None
    ) -> Callable[[], Reply]:
        """Return a call that carries the change out here, and then forwards it to the standby."""
        change = parse_change(message, payload, grant)

        def attempt() -> Reply:
            answer = change(self.store)
            self._link.forward(message, payload)
            return Reply(message=answer)

        return attempt

    def _after_replication(self, answer: Answer) -> Answer:
        """Return the answer once the standby has the change that it reports."""
        if isinstance(answer, Reply) and not self._link.is_waiting:
            return answer
        return self._reply_after_replication(answer)

    async def _reply_after_replication(self, answer: Answer) -> Reply:
        reply = answer if isinstance(answer, Reply) else await answer
        replicated = asyncio.Event()
        self._link.after(replicated.set)
        await replicated.wait()
        return reply

    def _read(self, peer: Peer, message: Read, _: memoryview) -> Reply:
        return self._reads.answer(peer, message.uids, message.columns)

    def _attach(self, peer: Peer, message: Attach, _: memoryview) -> Reply:
        memory = self.store.slabs.memory
        if not (peer.local and memory.shareable):
            raise DockRefused(f"{self.role} gives its memory to peers on its unix socket only")
        peer.attached = True
        return Reply(descriptors=(memory.open_read_only(), memory.open_writable()))

    def _ask_slab(self, peer: Peer, message: AskSlab, _: memoryview) -> Reply:
        return Reply(message=SlabGrant(slab=self._granted.grant(peer, message.num_bytes)))

    def _release(self, peer: Peer, message: Release, _: memoryview) -> None:
        self._reads.release(peer, message.pins)

    def _subscribe(self, peer: Peer, message: Subscribe, _: memoryview) -> None:
        """Answer with the snapshot, in order with the notices."""
        state, needs = message.state, frozenset(message.needs)
        if is_behind(self.epoch, message.seen):
            self._start_over()
        batches = self.store.batches.values()
        snapshot = snapshot_for(batches, state=state, needs=needs, epoch=self.epoch)

        def attach() -> None:
            if peer in self.peers:
                self._broadcast.subscribe(peer, state, needs)
                peer.send_now(Reply(message=snapshot))

        self._link.after(attach)

    def _start_over(self) -> None:
        """Discard rows that were taken over from an outdated standby; they must not come back."""
        log.warning("dock %s starts over: its standby was behind", self.role)
        self._link.start_over()
        self._broadcast.cut_off()
        self._changed()
        raise DockRefused(f"{self.role} took over rows that were behind; it starts over, empty")

    def _stats(self, peer: Peer, message: AskWarehouseStats, _: memoryview) -> Reply:
        store = self.store
        return Reply(
            message=WarehouseStats(
                role=self.role,
                rows=store.num_rows,
                bytes=store.charged_bytes,
                capacity=store.capacity_bytes,
                retained=store.slabs.retained_bytes,
                holes=self._granted.holes,
                pins=self._reads.num_pins,
                expired_pins=self._reads.expired_pins,
                attached=sum(p.attached for p in self.peers),
                waiting=len(self._puts) + len(self._writes),
                refused=self.refused,
                requests=self.requests,
                subscribers=len(self._broadcast),
                unacknowledged=store.unacknowledged(),
                batches={n: b.live for n, b in store.batches.items() if b.live},
                **self.replication(),
                **self._standby_stats(),
            )
        )

    def _inspect(self, peer: Peer, message: Inspect, _: memoryview) -> Reply:
        waiting = {"puts": len(self._puts), "writes": len(self._writes)}
        readers = {"pins": self._reads.num_pins, "expired_pins": self._reads.expired_pins}
        state = {**inspection(self.store), "waiting_for_room": waiting, **readers}
        return Reply(message=Inspection(told={"role": self.role, **state, **self.replication()}))

    def replication(self) -> dict[str, Any]:
        """Return whether its rows are in a standby too, and how often they were not; empty with one copy."""
        if not self._warehouses:
            return {}
        return {"replicated": self._link.replicated, "times_alone": self._link.times_alone}

    def _standby_stats(self) -> dict[str, Any]:
        if not self._warehouses:
            return {}
        standby_store = self._standby.store
        return {
            "standby_rows": standby_store.num_rows if standby_store is not None else 0,
            "standby_bytes": standby_store.charged_bytes if standby_store is not None else 0,
        }

    def _full(self, waited_seconds: float) -> DockFull:
        store, stuck = self.store, self.store.stuck_state()
        cause = "no row is ready for any state"
        if stuck is not None:
            cause = f"state {stuck[0]} has not acknowledged {stuck[1]} rows that are ready for it"
        return DockFull(
            f"{self.role} stayed full for {waited_seconds:.3g} s: {store.charged_bytes} of "
            f"{store.capacity_bytes} bytes hold {store.num_rows} rows, and readers hold "
            f"{store.slabs.retained_bytes} bytes of freed ones; {cause}; find out why it does not go "
            "on, or raise spec.dock.capacity"
        )

    def _changed(self) -> None:
        """React to a change: admit parked messages that fit, then broadcast."""
        self._writes.let_in()
        self._puts.let_in()
        self._prefault_ahead()
        notices = self.store.take_notices()
        self._link.after(lambda: self._broadcast.publish(notices))

    def _prefault_ahead(self) -> None:
        """Populate memory in the background before it is written; unused memory stays unpopulated."""
        memory, used = self.store.slabs.memory, self.store.slabs.arena.high_water
        target_bytes = min(memory.num_bytes, max(PREFAULT_BYTES, 2 * used))
        idle = self._prefault is None or self._prefault.done()
        if idle and memory.populated_bytes < target_bytes:
            loop = asyncio.get_running_loop()
            self._prefault = loop.run_in_executor(None, memory.populate, target_bytes)
