"""Slabs that clients of this machine fill by themselves: a connection has one at most.

A message whose columns lie in its peer's slab makes the slab the rows', as it is; its answer grants the next
one. A peer whose connection ended writes no more; one that this side cut off may be about to, so its slab is
never used again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec

from rljob_runtime.dock.warehouse.slabs import Grant, SlabMemory, joined
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import GrantedSlab, PutRows, Write
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply

GRANTABLE_BYTES = 64 << 20
"""Of a warehouse's memory beside its capacity; only what is used is taken from the machine."""

CarryOut = Callable[[memoryview, Grant | None], Answer]


class GrantedSlabs:
    """Of one warehouse, by peer."""

    def __init__(self, slabs: SlabMemory) -> None:
        self._slabs = slabs
        self._of: dict[Peer, Grant] = {}

    def grant(self, peer: Peer, num_bytes: int) -> GrantedSlab | None:
        """In place of one that the peer has; None where it is not attached or there is no room."""
        before = self._of.pop(peer, None)
        if before is not None:
            self._slabs.settle(before)
        grant = self._slabs.grant(num_bytes) if peer.attached else None
        if grant is None:
            return None
        self._of[peer] = grant
        return GrantedSlab(*grant.span)

    @property
    def holes(self) -> int:
        """Pieces that the arena's free bytes lie in, those that are granted among them."""
        granted = [grant.span for grant in self._of.values()]
        return len(joined(sorted([*self._slabs.arena.holes(), *granted])))

    def serve(
        self, peer: Peer, message: PutRows | Write, payload: memoryview, carry_out: CarryOut
    ) -> Answer:
        """Carry a message out with its columns, which came behind the header or lie in the peer's slab.

        Raises MalformedFrame when they lie where there is none.
        """
        num_bytes = message.granted
        if num_bytes is None:
            return carry_out(payload, None)
        grant = self._of.get(peer)
        if grant is None or len(payload) or not 0 <= num_bytes <= grant.num_bytes:
            raise MalformedFrame(f"{num_bytes} bytes of a slab, and no such one was granted")
        del self._of[peer]
        start = grant.span[0]
        answer: Answer | None = None
        try:
            answer = carry_out(self._slabs.memory.view[start : start + num_bytes], grant)
        finally:
            if answer is None:
                self._slabs.settle(grant)
        if isinstance(answer, Reply):
            return self._with_the_next(peer, grant, answer)
        return self._later(peer, grant, answer)

    def lost(self, peer: Peer) -> None:
        """Its connection is gone."""
        grant = self._of.pop(peer, None)
        if grant is not None and not peer.cut_off:
            self._slabs.settle(grant)

    async def _later(self, peer: Peer, grant: Grant, answer: Awaitable[Reply]) -> Reply:
        reply: Reply | None = None
        try:
            reply = await answer
        finally:
            if reply is None:
                self._slabs.settle(grant)
        return self._with_the_next(peer, grant, reply)

    def _with_the_next(self, peer: Peer, grant: Grant, reply: Reply) -> Reply:
        self._slabs.settle(grant)
        granted = self.grant(peer, grant.num_bytes)
        return replace(reply, message=msgspec.structs.replace(reply.message, granted=granted))
