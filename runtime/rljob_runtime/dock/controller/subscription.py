"""A controller's link to one warehouse: connect, send the token, receive the snapshot, then notices.

It reconnects forever with a growing pause; each connection starts with a new snapshot.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from rljob_runtime.dock.wire.frames import Frame, FrameKind, MalformedFrame
from rljob_runtime.dock.wire.messages import FailureReply, Hello, Notices, Snapshot, Subscribe
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.dock.wire.tcp import open_connection

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0


class Subscription:
    """Receives one warehouse's metadata.

    address: where the warehouse is, or a function that returns it before each attempt and may block.
    subscribe: the request, without the epochs that were received. on_snapshot is called first on each
    connection, then on_notices, both with the warehouse's index.
    """

    def __init__(
        self,
        *,
        index: int,
        address: tuple[str, int] | Callable[[], tuple[str, int]],
        hello: Hello,
        subscribe: Subscribe,
        on_snapshot: Callable[[int, Snapshot], None],
        on_notices: Callable[[int, Notices], None],
    ) -> None:
        self.connected = False
        self._index = index
        self._resolve = address if callable(address) else lambda: address
        self._hello, self._subscribe = hello, subscribe
        self._on_snapshot, self._on_notices = on_snapshot, on_notices
        self._welcomed = False
        self._epochs: list[str] = []
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._unapplied: deque[Notices] = deque()
        self._applying = False

    def start(self) -> None:
        """Start connecting to the warehouse."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Disconnect and do not reconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                address = await asyncio.to_thread(self._resolve)
                transport, peer = await open_connection(self._new_peer, address)
            except OSError as error:
                log.debug("warehouse %d is not reached: %s", self._index, error)
            else:
                try:
                    peer.send_now(Reply(message=self._hello))
                    await self._ended.wait()
                    pause = FIRST_PAUSE_SECONDS if self.connected else pause
                finally:
                    self.connected = False
                    transport.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    def _new_peer(self) -> Peer:
        self._ended = asyncio.Event()
        self._welcomed = False
        peer = Peer(
            on_frame=self._on_frame,
            on_lost=self._on_lost,
            on_malformed=self._on_malformed,
        )
        peer.trusted = True
        return peer

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind is FrameKind.FAILED:
            log.warning("warehouse %d: %s", self._index, frame.read(FailureReply).text)
            peer.close()
        elif not self._welcomed:
            self._welcomed = True
            subscribe = msgspec.structs.replace(self._subscribe, seen=self._epochs)
            peer.send_now(Reply(message=subscribe))
        elif not self.connected:
            snapshot = frame.read(Snapshot)
            with _malformed_on_mismatch():
                self._on_snapshot(self._index, snapshot)
            self.connected = True
            self._record_epoch(snapshot.epoch)
        elif (notices := frame.read(Notices)).epoch is not None:
            self._record_epoch(notices.epoch)
        else:
            self._unapplied.append(notices)
            if not self._applying:
                self._applying = True
                asyncio.get_running_loop().call_soon(self._apply_next, peer)
                self._apply()

    def _apply_next(self, peer: Peer) -> None:
        """Apply the next notices; schedule those behind them, so that the loop serves requests in between."""
        self._applying = bool(self._unapplied)
        if not self._applying:
            return
        asyncio.get_running_loop().call_soon(self._apply_next, peer)
        try:
            self._apply()
        except MalformedFrame as error:
            self._on_malformed(peer, error)
            peer.close()

    def _apply(self) -> None:
        with _malformed_on_mismatch():
            self._on_notices(self._index, self._unapplied.popleft())

    def _on_lost(self, peer: Peer) -> None:
        """Apply the notices that arrived before the end: rows that were known can be missed."""
        try:
            while self._unapplied:
                self._apply()
        except MalformedFrame as error:
            self._unapplied.clear()
            self._on_malformed(peer, error)
        self._ended.set()

    def _record_epoch(self, epoch: str) -> None:
        """Remember the warehouse's epochs in order; the next subscription sends them.

        From them a warehouse detects that it took over outdated rows.
        """
        if self._epochs[-1:] != [epoch]:
            self._epochs.append(epoch)

    def _on_malformed(self, peer: Peer, error: MalformedFrame) -> None:
        log.warning("warehouse %d sent what cannot be read: %s", self._index, error)


@contextlib.contextmanager
def _malformed_on_mismatch() -> Iterator[None]:
    """Raise MalformedFrame where a message does not fit the ledger; this ends the connection, and a snapshot
    follows."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise MalformedFrame(f"notices do not fit: {type(error).__name__} {error}") from error
