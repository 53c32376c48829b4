"""Memory that a client of this machine writes to and its warehouse reads: one for each connection.

The writer waits for its answer before it writes there again, and memory of a lost connection is never
used for another; so what a message put there stays as it is until it was carried out.
"""

from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.memory import Memory
from rljob_runtime.dock.wire.peer import Peer

STAGING_BYTES = 16 << 20
"""For the columns of one message; only what is used is taken from the machine."""


def new_staging() -> Memory:
    """For a client that attaches."""
    return Memory(STAGING_BYTES, shared=True, for_writers=True)


def columns_of(peer: Peer, staged: int | None, payload: memoryview) -> memoryview:
    """A message's columns: what came behind its header, or lies in the peer's memory.

    Raises MalformedFrame when it lies where there is none.
    """
    if staged is None:
        return payload
    if peer.staging is None or len(payload) or not 0 <= staged <= peer.staging.num_bytes:
        raise MalformedFrame(f"{staged} staged bytes, and there is no such room")
    return peer.staging.view[:staged]
