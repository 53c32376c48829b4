"""A warehouse's broadcast: what changed in a turn of its loop, one message a controller."""

import asyncio
from dataclasses import dataclass, field

from rljob_runtime.dock.frames import Kind
from rljob_runtime.dock.notices import Notice, encode_notices
from rljob_runtime.dock.peer import Peer, Reply

MAX_UNSENT_BYTES = 64 << 20
"""A controller that lets so many bytes of notices pile up is cut off; it subscribes anew."""


@dataclass(slots=True)
class Broadcaster:
    """Sends notices to the controllers that subscribed."""

    _subscribers: dict[Peer, tuple[str, frozenset[str]]] = field(default_factory=dict)
    _unsent: list[Notice] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, peer: Peer, state: str, needs: frozenset[str]) -> None:
        """From now on; what happened before is in the snapshot that the peer gets."""
        self.flush()
        self._subscribers[peer] = (state, needs)

    def forget(self, peer: Peer) -> None:
        """The peer's connection is gone."""
        self._subscribers.pop(peer, None)

    def publish(self, notices: list[Notice]) -> None:
        """Send these with all others of this turn of the loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent += notices

    def announce(self, epoch: str) -> None:
        """Tell all at once that the warehouse has another epoch, with the rows that it had."""
        self.flush()
        for peer in self._subscribers:
            peer.send_now(Reply(kind=Kind.NOTICE, header={"epoch": epoch}))

    def cut_off(self) -> None:
        """End every subscription; the controllers subscribe anew."""
        self._unsent.clear()
        for peer in list(self._subscribers):
            peer.close()

    def flush(self) -> None:
        """Send what was published, one message a controller."""
        notices, self._unsent = self._unsent, []
        if not notices:
            return
        for peer, (state, needs) in list(self._subscribers.items()):
            message = encode_notices(notices, state=state, needs=needs)
            if any(message.values()):
                peer.send_now(Reply(kind=Kind.NOTICE, header=message))
            if peer.unsent_bytes > MAX_UNSENT_BYTES:
                del self._subscribers[peer]
                peer.close()
