"""A controller's link to one warehouse: connect, show the token, take the snapshot, then notices.

Reconnects for ever with a growing pause; each connection starts from a new snapshot.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from rljob_runtime.dock.wire.frames import Frame, Kind, MalformedFrame
from rljob_runtime.dock.wire.messages import Failure, Hello, Notices, Snapshot, Subscribe
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.dock.wire.tcp import open_connection

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0


class Subscription:
    """Keeps one warehouse's metadata flowing.

    address: where the warehouse is, or a function that says so before each try and may take its time.
    wish: without the epochs that were seen. on_snapshot comes first on each connection, then on_notices,
    both with the index.
    """

    def __init__(
        self,
        *,
        index: int,
        address: tuple[str, int] | Callable[[], tuple[str, int]],
        hello: Hello,
        wish: Subscribe,
        on_snapshot: Callable[[int, Snapshot], None],
        on_notices: Callable[[int, Notices], None],
    ) -> None:
        self.connected = False
        self._index = index
        self._find = address if callable(address) else lambda: address
        self._hello, self._wish = hello, wish
        self._on_snapshot, self._on_notices = on_snapshot, on_notices
        self._greeted = False
        self._seen: list[str] = []
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[Notices] = deque()
        self._taking = False

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                place = await asyncio.to_thread(self._find)
                transport, peer = await open_connection(self._new_peer, place)
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
        self._greeted = False
        peer = Peer(
            on_frame=self._on_frame,
            on_lost=self._lost,
            on_malformed=self._on_malformed,
        )
        peer.trusted = True
        return peer

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind is Kind.FAILED:
            log.warning("warehouse %d: %s", self._index, frame.read(Failure).text)
            peer.close()
        elif not self._greeted:
            self._greeted = True
            wish = msgspec.structs.replace(self._wish, seen=self._seen)
            peer.send_now(Reply(message=wish))
        elif not self.connected:
            snapshot = frame.read(Snapshot)
            with _fitting():
                self._on_snapshot(self._index, snapshot)
            self.connected = True
            self._saw(snapshot.epoch)
        elif (notices := frame.read(Notices)).epoch is not None:
            self._saw(notices.epoch)
        else:
            self._waiting.append(notices)
            if not self._taking:
                self._taking = True
                asyncio.get_running_loop().call_soon(self._take_on, peer)
                self._take()

    def _take_on(self, peer: Peer) -> None:
        """Apply the next notices; those behind them when the loop has served who asks."""
        self._taking = bool(self._waiting)
        if not self._taking:
            return
        asyncio.get_running_loop().call_soon(self._take_on, peer)
        try:
            self._take()
        except MalformedFrame as error:
            self._on_malformed(peer, error)
            peer.close()

    def _take(self) -> None:
        with _fitting():
            self._on_notices(self._index, self._waiting.popleft())

    def _lost(self, peer: Peer) -> None:
        """What was told before the end counts: rows that were known can be missed."""
        try:
            while self._waiting:
                self._take()
        except MalformedFrame as error:
            self._waiting.clear()
            self._on_malformed(peer, error)
        self._ended.set()

    def _saw(self, epoch: str) -> None:
        """Remember the warehouse's epochs in order: one that was left behind by its rows is told."""
        if self._seen[-1:] != [epoch]:
            self._seen.append(epoch)

    def _on_malformed(self, peer: Peer, error: MalformedFrame) -> None:
        log.warning("warehouse %d sent what cannot be read: %s", self._index, error)


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """A message that does not fit what is known ends the connection; a snapshot follows."""
    try:
        yield
    except (KeyError, ValueError) as error:
        raise MalformedFrame(f"notices do not fit: {type(error).__name__} {error}") from error
