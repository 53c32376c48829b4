"""A warehouse's broadcast: the changes of one turn of its loop, in messages of bounded length.

Between two messages the warehouse and the controllers serve requests, so that no request waits for all rows
of a large put.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_runtime.dock.warehouse.notices import Notice, notices_for
from rljob_runtime.dock.wire.messages import Notices, RowsNotice
from rljob_runtime.dock.wire.peer import Peer, Reply

MAX_UNSENT_BYTES = 64 << 20
"""A controller with more unsent bytes of notices is disconnected; it subscribes again."""


ROWS = 4096
"""Maximum number of rows that one message is about, unless a single notice has more."""
NOTHING = Notices()


@dataclass(slots=True)
class Broadcaster:
    """Sends notices to the controllers that subscribed."""

    _subscribers: dict[Peer, tuple[str, frozenset[str]]] = field(default_factory=dict)
    _unsent: list[Notice] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, peer: Peer, state: str, needs: frozenset[str]) -> None:
        """Send later notices to the peer; earlier changes are in its snapshot."""
        self.flush()
        self._subscribers[peer] = (state, needs)

    def forget(self, peer: Peer) -> None:
        """Remove a peer whose connection is gone."""
        self._subscribers.pop(peer, None)

    def publish(self, notices: list[Notice]) -> None:
        """Send these notices with all others of this turn of the loop.

        New rows are sent immediately, before their put is answered. Rows that no controller was notified of
        would not be missed if the warehouse died now.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)
        self._unsent += notices
        if any(isinstance(notice.content, RowsNotice) for notice in notices):
            self.flush()

    def announce(self, epoch: str) -> None:
        """Notify all subscribers immediately that the warehouse has a new epoch, with the same rows."""
        self.flush()
        for peer in self._subscribers:
            peer.send_now(Reply(message=Notices(epoch=epoch)))

    def cut_off(self) -> None:
        """End every subscription; the controllers subscribe again."""
        self._unsent.clear()
        for peer in list(self._subscribers):
            peer.close()

    def flush(self) -> None:
        """Send all that was published."""
        while self._unsent:
            self._send()

    def _send_on(self) -> None:
        """Send one message, and continue after the loop has served others."""
        if self._unsent:
            self._send()
        if self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)

    def _send(self) -> None:
        """Send one message to each controller."""
        size = _message_size(self._unsent)
        notices, self._unsent = self._unsent[:size], self._unsent[size:]
        for peer, (state, needs) in list(self._subscribers.items()):
            message = notices_for(notices, state=state, needs=needs)
            if message != NOTHING:
                peer.send_now(Reply(message=message))
            if peer.unsent_bytes > MAX_UNSENT_BYTES:
                del self._subscribers[peer]
                peer.close()


def _message_size(notices: Sequence[Notice]) -> int:
    """Return the number of notices that go into the next message."""
    rows = 0
    for number, notice in enumerate(notices):
        rows += notice.rows
        if rows > ROWS:
            return max(number, 1)
    return len(notices)
