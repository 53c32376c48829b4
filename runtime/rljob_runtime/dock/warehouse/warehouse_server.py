"""The warehouse server: `WarehouseStore` behind a socket, with its broadcast and its back pressure.

One process a node. Producers of new rows are parked while it is full; every change is broadcast to
the controllers that subscribed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.warehouse.broadcast import Broadcaster
from rljob_runtime.dock.warehouse.changes import change_of
from rljob_runtime.dock.warehouse.epoch import is_behind
from rljob_runtime.dock.warehouse.granted import GRANTABLE_BYTES, GrantedSlabs
from rljob_runtime.dock.warehouse.notices import snapshot_for
from rljob_runtime.dock.warehouse.parking import Parking
from rljob_runtime.dock.warehouse.reads import ReadDesk
from rljob_runtime.dock.warehouse.slabs import Grant
from rljob_runtime.dock.warehouse.standby import Standby
from rljob_runtime.dock.warehouse.standby_link import Place, StandbyLink
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_inspection import inspection
from rljob_runtime.dock.wire.memory import Memory
from rljob_runtime.dock.wire.messages import (
    AskSlab,
    AskWarehouse,
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
"""Of a new warehouse's memory; later twice as much as was ever used."""


class WarehouseServer(DockServer):
    """Serves one warehouse.

    index: its place in the dock's list. capacity_bytes: what it may hold; see WarehouseStore.
    shared_directory: see DockServer; only over its socket do readers map the memory.
    pin_seconds: how long such a reader may look at what it was answered. warehouses: where each of
    the dock is, this one included, in its order: the next one then holds the rows too; empty: rows
    are held once.
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
        warehouses: Sequence[Place] = (),
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
            memory=Memory(capacity_bytes + GRANTABLE_BYTES, shared=True),
            grantable_bytes=GRANTABLE_BYTES,
        )
        self._granted = GrantedSlabs(self.store.slabs)
        self.index = index
        self._warehouses = warehouses
        self._standby = Standby(
            of=(index - 1) % len(warehouses) if warehouses else None,
            new_store=lambda: WarehouseStore(
                graph=graph, capacity_bytes=capacity_bytes, derived_share=derived_share
            ),
        )
        holder = (index + 1) % len(warehouses) if warehouses else index
        self._link = StandbyLink(
            self.store,
            index=index,
            holder=holder,
            place=warehouses[holder] if warehouses else None,
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
        self.answer(AskWarehouse, self._stats)
        self.answer(Inspect, self._inspect)
        self.answer(TakeOver, self._standby.take_over)
        self.answer(Export, self._standby.export)
        self.answer(Seed, self._standby.seed)
        self.answer(Import, self._standby.take)
        self.answer(Forward, self._standby.follow)

    @property
    def epoch(self) -> str:
        """Which rows it has: another one after a loss."""
        return self._link.epoch

    async def start(self) -> tuple[str, int]:
        """See DockServer. Clients are answered once it is known what the standby holds."""
        place = await super().start()
        self._link.start()
        self._prefault_ahead()
        return place

    async def stop(self) -> None:
        """See DockServer."""
        await self._link.stop()
        await super().stop()
        self.store.slabs.memory.close()

    def welcome(self) -> WarehouseWelcome:
        """A peer learns the epoch, how large a put may be, and how long it may look at an answer."""
        return WarehouseWelcome(
            **msgspec.structs.asdict(super().welcome()),
            epoch=self.epoch,
            capacity=self.store.capacity_bytes,
            pin_seconds=self._reads.pin_seconds,
        )

    def greet(self, hello: Hello) -> Answer:
        """See DockServer."""
        waits = not (self._link.ready.is_set() or hello.standby)
        return self._greet_later(hello) if waits else super().greet(hello)

    def lost(self, peer: Peer) -> None:
        """A subscriber or a client left."""
        self._broadcast.forget(peer)
        self._reads.lost(peer)
        self._standby.lost(peer)
        self._granted.lost(peer)

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
        def carry_out(columns: memoryview, grant: Grant | None) -> Answer:
            return parking.admit(self._attempt(change, columns, grant), message.timeout)

        return self._held(self._granted.serve(peer, message, payload, carry_out))

    def _drop_batch(self, peer: Peer, message: DropBatch, payload: memoryview) -> Answer:
        reply = self._attempt(Forward(drop=message), payload)()
        self._changed()
        return self._held(reply)

    def _attempt(
        self, message: Forward, payload: memoryview, grant: Grant | None = None
    ) -> Callable[[], Reply]:
        """Carries the change out here, and sends it on to the standby once that was done."""
        change = change_of(message, payload, grant)

        def attempt() -> Reply:
            answer = change(self.store)
            self._link.forward(message, payload)
            return Reply(message=answer)

        return attempt

    def _held(self, answer: Answer) -> Answer:
        """The answer, once the standby has what it tells of."""
        if isinstance(answer, Reply) and not self._link.waits:
            return answer
        return self._held_later(answer)

    async def _held_later(self, answer: Answer) -> Reply:
        reply = answer if isinstance(answer, Reply) else await answer
        held = asyncio.Event()
        self._link.after(held.set)
        await held.wait()
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
        """Answer with the snapshot, in its place among the notices."""
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
        """What was taken over had been left behind by its warehouse: it must not come back."""
        log.warning("dock %s starts over: its standby was behind", self.role)
        self._link.start_over()
        self._broadcast.cut_off()
        self._changed()
        raise DockRefused(f"{self.role} took over rows that were behind; it starts over, empty")

    def _stats(self, peer: Peer, message: AskWarehouse, _: memoryview) -> Reply:
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
                **self._held_for_another(),
            )
        )

    def _inspect(self, peer: Peer, message: Inspect, _: memoryview) -> Reply:
        waiting = {"puts": len(self._puts), "writes": len(self._writes)}
        readers = {"pins": self._reads.num_pins, "expired_pins": self._reads.expired_pins}
        told = {**inspection(self.store), "waiting_for_room": waiting, **readers}
        return Reply(message=Inspection(told={"role": self.role, **told, **self.replication()}))

    def replication(self) -> dict[str, Any]:
        """Whether its rows are in a standby too, and how often they were not; empty with one copy."""
        if not self._warehouses:
            return {}
        return {"replicated": self._link.replicated, "times_alone": self._link.times_alone}

    def _held_for_another(self) -> dict[str, Any]:
        if not self._warehouses:
            return {}
        held = self._standby.store
        return {
            "standby_rows": held.num_rows if held is not None else 0,
            "standby_bytes": held.charged_bytes if held is not None else 0,
        }

    def _full(self, waited_seconds: float) -> DockFull:
        store, stuck = self.store, self.store.stuck_state()
        who = "no row is ready for any state"
        if stuck is not None:
            who = f"state {stuck[0]} has not acknowledged {stuck[1]} rows that are ready for it"
        return DockFull(
            f"{self.role} stayed full for {waited_seconds:.3g} s: {store.charged_bytes} of "
            f"{store.capacity_bytes} bytes hold {store.num_rows} rows, and readers hold "
            f"{store.slabs.retained_bytes} bytes of freed ones; {who}; find out why it does not go "
            "on, or raise spec.dock.capacity"
        )

    def _changed(self) -> None:
        """After a change: let parked messages in as far as there is room, then broadcast."""
        self._writes.let_in()
        self._puts.let_in()
        self._prefault_ahead()
        notices = self.store.take_notices()
        self._link.after(lambda: self._broadcast.publish(notices))

    def _prefault_ahead(self) -> None:
        """Make memory present in the background before it is written; what never is used never is."""
        memory, used = self.store.slabs.memory, self.store.slabs.arena.high_water
        wanted = min(memory.num_bytes, max(PREFAULT_BYTES, 2 * used))
        idle = self._prefault is None or self._prefault.done()
        if idle and memory.populated_bytes < wanted:
            loop = asyncio.get_running_loop()
            self._prefault = loop.run_in_executor(None, memory.populate, wanted)
