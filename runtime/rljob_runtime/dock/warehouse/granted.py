"""Slabs that clients on this machine fill directly; a connection has at most one.

A message whose columns are in its peer's slab turns the slab into the rows' storage without a copy; its
answer grants the next one. A peer whose connection ended can no longer write. One that this side disconnected
may still be writing, so its slab is never used again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from rljob_runtime.dock.warehouse.slabs import GrantedSpan, SlabMemory, merge_adjacent
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import GrantedSlab, PutRows, Write
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply

GRANTABLE_BYTES = 64 << 20
"""Part of a warehouse's memory besides its capacity; only used pages take memory of the machine."""

CarryOut = Callable[[memoryview, GrantedSpan | None], Answer]


class GrantedSlabs:
    """The granted slabs of one warehouse, by peer."""

    def __init__(self, slabs: SlabMemory) -> None:
        self._slabs = slabs
        self._by_peer: dict[Peer, GrantedSpan] = {}

    def grant(self, peer: Peer, num_bytes: int) -> GrantedSlab | None:
        """Grant a slab in place of the peer's previous one; None where it is not attached or there is no
        room."""
        previous = self._by_peer.pop(peer, None)
        if previous is not None:
            self._slabs.settle(previous)
        grant = self._slabs.grant(num_bytes) if peer.attached else None
        if grant is None:
            return None
        self._by_peer[peer] = grant
        return GrantedSlab(*grant.span)

    @property
    def holes(self) -> int:
        """The number of free spans of the arena, where granted spans count as free."""
        granted = [grant.span for grant in self._by_peer.values()]
        return len(merge_adjacent(sorted([*self._slabs.arena.holes(), *granted])))

    def serve(
        self, peer: Peer, message: PutRows | Write, payload: memoryview, carry_out: CarryOut
    ) -> Answer:
        """Carry a message out with its columns, which follow the header or are in the peer's slab.

        Raises MalformedFrame when they should be in a slab that was not granted.
        """
        num_bytes = message.granted
        if num_bytes is None:
            return carry_out(payload, None)
        grant = self._by_peer.get(peer)
        if grant is None or len(payload) or not 0 <= num_bytes <= grant.num_bytes:
            raise MalformedFrame(f"{num_bytes} bytes of a slab, and no such one was granted")
        del self._by_peer[peer]
        start = grant.span[0]
        answer: Answer | None = None
        try:
            answer = carry_out(self._slabs.memory.view[start : start + num_bytes], grant)
        finally:
            if answer is None:
                self._slabs.settle(grant)
        if isinstance(answer, Reply):
            return self._with_the_next(peer, grant, answer)
        return self._serve_later(peer, grant, answer)

    def peer_lost(self, peer: Peer) -> None:
        """Settle the grant of a peer whose connection is gone."""
        grant = self._by_peer.pop(peer, None)
        if grant is not None and not peer.cut_off:
            self._slabs.settle(grant)

    async def _serve_later(self, peer: Peer, grant: GrantedSpan, answer: Awaitable[Reply]) -> Reply:
        reply: Reply | None = None
        try:
            reply = await answer
        finally:
            if reply is None:
                self._slabs.settle(grant)
        return self._with_the_next(peer, grant, reply)

    def _with_the_next(self, peer: Peer, grant: GrantedSpan, reply: Reply) -> Reply:
        self._slabs.settle(grant)
        granted = self.grant(peer, grant.num_bytes)
        return replace(reply, message=msgspec.structs.replace(reply.message, granted=granted))
