"""A warehouse's broadcast: what changed in a turn of its loop, in messages that are not long.

Between two of them the warehouse serves requests, and so do the controllers, so that nobody who asks
waits for all rows of a large put.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.dock.warehouse.notices import Notice, notices_for
from rljob_runtime.dock.wire.messages import Notices, RowsNotice
from rljob_runtime.dock.wire.peer import Peer, Reply

MAX_UNSENT_BYTES = 64 << 20
"""A controller that lets so many bytes of notices pile up is cut off; it subscribes anew."""


ROWS = 4096
"""That one message is about, more only where one notice is."""
NOTHING = Notices()


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
        """Send these with all others of this turn of the loop; of new rows at once, before their put is
        answered: rows that nobody has told a controller of would not be missed if the warehouse died now."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)
        self._unsent += notices
        if any(isinstance(notice.told, RowsNotice) for notice in notices):
            self.flush()

    def announce(self, epoch: str) -> None:
        """Tell all at once that the warehouse has another epoch, with the rows that it had."""
        self.flush()
        for peer in self._subscribers:
            peer.send_now(Reply(message=Notices(epoch=epoch)))

    def cut_off(self) -> None:
        """End every subscription; the controllers subscribe anew."""
        self._unsent.clear()
        for peer in list(self._subscribers):
            peer.close()

    def flush(self) -> None:
        """Send all that was published."""
        while self._unsent:
            self._send()

    def _send_on(self) -> None:
        """Send a part, and go on when the loop has served others."""
        if self._unsent:
            self._send()
        if self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)

    def _send(self) -> None:
        """One message a controller."""
        size = _part_size(self._unsent)
        notices, self._unsent = self._unsent[:size], self._unsent[size:]
        for peer, (state, needs) in list(self._subscribers.items()):
            message = notices_for(notices, state=state, needs=needs)
            if message != NOTHING:
                peer.send_now(Reply(message=message))
            if peer.unsent_bytes > MAX_UNSENT_BYTES:
                del self._subscribers[peer]
                peer.close()


def _part_size(notices: Sequence[Notice]) -> int:
    """How many go first."""
    rows = 0
    for number, notice in enumerate(notices):
        rows += notice.rows
        if rows > ROWS:
            return max(number, 1)
    return len(notices)
