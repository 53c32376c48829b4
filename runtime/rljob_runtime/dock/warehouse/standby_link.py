"""A warehouse's link to its standby: takes over the rows stored there, then replicates every change.

Frames are sent in order on one connection and each is confirmed; answers and broadcasts of the warehouse wait
for that in `after`. While the standby is unreachable the warehouse continues alone.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rljob_runtime.dock.warehouse.epoch import new_epoch, next_term
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.warehouse.store_copy import StoreCopy, add_chunk, clear
from rljob_runtime.dock.wire.frames import DockMessage, Frame, FrameKind, MalformedFrame
from rljob_runtime.dock.wire.messages import (
    DoneReply,
    Export,
    FailureReply,
    Forward,
    Hello,
    Import,
    Request,
    Seed,
    TakeOver,
)
from rljob_runtime.dock.wire.peer import Peer, Reply
from rljob_runtime.dock.wire.tcp import open_connection
from rljob_runtime.errors import DockError, DockRefused

A = TypeVar("A", bound=DockMessage)

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0
SILENT_SECONDS = 15.0
"""Time after which a standby that accepts and confirms nothing counts as unreachable."""
TAKE_OVER_SECONDS = 60.0
"""Time for which a starting warehouse looks for the holder of its standby before it starts empty."""
BACKLOG_BYTES = 64 << 20
"""Maximum size of changes made while the standby is seeded; beyond it, their answers wait for the seeding."""
SEEDED = 1 << 62
"""Placeholder for the frame number of the end of the seeding, which is not known yet."""

ServerAddress = tuple[str, int] | Callable[[], tuple[str, int]]


class StandbyLink:
    """Maintains one warehouse's standby.

    address: of its holder, or a function that returns it and may block; None: rows are stored once. on_alone:
    called when the warehouse continues without it, with a new epoch. on_room: called when bytes of rows that
    are gone became free.
    """

    def __init__(
        self,
        store: WarehouseStore,
        *,
        index: int,
        holder: int,
        address: ServerAddress | None,
        token: str,
        on_alone: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None:
        self.epoch = new_epoch()
        self.replicated = False
        """True while a standby has all that was confirmed to any client."""
        self.times_alone = 0
        self.ready = asyncio.Event()
        """Set once the content of the warehouse is known; no client is answered before."""
        self._store = store
        self._address = address
        self._index, self._name = index, f"warehouse/{index}"
        self._hello = Hello(
            token=token,
            role=f"warehouse/{holder}",
            owner=self._name,
            session=secrets.token_hex(8),
            standby=True,
        )
        self._on_alone, self._on_room = on_alone, on_room
        self._pause = FIRST_PAUSE_SECONDS
        self._started = 0.0
        self._task: asyncio.Task[None] | None = None
        self._peer: Peer | None = None
        self._ended = asyncio.Event()
        self._failure: DockError | None = None
        self._synchronous = False
        self._backlog: list[Reply] | None = None
        self._backlog_bytes = 0
        self._sent = self._confirmed = 0
        self._answers: dict[int, _PendingAnswer] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def start(self) -> None:
        """Start looking for the standby; the link is immediately ready where there is none."""
        self._started = time.monotonic()
        if self._address is None:
            self.ready.set()
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(self._address))

    async def stop(self) -> None:
        """Disconnect for good; calls that wait for the standby are executed."""
        self._synchronous = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def forward(self, message: Forward, payload: memoryview) -> None:
        """Send a message that the warehouse has just carried out to the standby."""
        if self._peer is None:
            return
        if self._backlog is None:
            self._send(Reply(message=message, buffers=[payload]))
        else:  # the writer may reuse the payload after the answer
            copied = bytes(payload)
            self._backlog.append(Reply(message=message, buffers=[copied]))
            self._backlog_bytes += len(copied)

    @property
    def is_waiting(self) -> bool:
        """True when `after` would not call immediately."""
        unconfirmed = self._synchronous and self._confirmed < self._sent
        return bool(self._waiting) or unconfirmed or self._backlog_bytes > BACKLOG_BYTES

    def after(self, call: Callable[[], None]) -> None:
        """Call once all that was forwarded until now is stored twice, in order.

        The call is immediate where the warehouse continues alone, or its standby is being seeded.
        """
        if self.is_waiting:
            self._waiting.append((SEEDED if self._backlog is not None else self._sent, call))
        else:
            call()

    def start_over(self) -> None:
        """Discard all rows, which are out of date, and seed the standby again."""
        clear(self._store)
        self.epoch = new_epoch()
        if self._peer is not None:
            self._peer.close()

    async def _run(self, address: ServerAddress) -> None:
        last_error = ""
        while True:
            try:
                await self._run_connection(address)
            except Exception as error:  # after any error the warehouse continues and tries again
                text = f"{type(error).__name__} {error}"
                log.log(
                    logging.DEBUG if text == last_error else logging.WARNING,
                    "%s and its standby: %s",
                    self._name,
                    text,
                )
                last_error = text
            self._go_alone()
            if not self.ready.is_set() and time.monotonic() > self._started + TAKE_OVER_SECONDS:
                log.warning(
                    "%s starts empty: the holder of its standby was not reached for %.0f s",
                    self._name,
                    TAKE_OVER_SECONDS,
                )
                self.ready.set()
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)

    async def _run_connection(self, address: ServerAddress) -> None:
        """Serve one connection until its end, which raises."""
        async with asyncio.timeout(SILENT_SECONDS):
            resolved = await asyncio.to_thread(address) if callable(address) else address
            transport, peer = await open_connection(self._new_peer, resolved)
        try:
            await self._ask(peer, self._hello)
            if self.ready.is_set() or not await self._take_over(peer):
                self.ready.set()
                await self._seed(peer)
            else:
                self._peer, self._synchronous, self.replicated = peer, True, True
                self.ready.set()
            self._pause = FIRST_PAUSE_SECONDS
            log.info("%s: every row is held twice", self._name)
            await self._watch(peer)
        finally:
            transport.abort()

    async def _take_over(self, peer: Peer) -> bool:
        """Copy the standby's rows into the empty store; return False when it has none."""
        answer, _ = await self._ask(peer, TakeOver(warehouse=self._index))
        if not answer.held:
            return False
        try:
            exported, payload = await self._ask(peer, Export())
            while exported.chunk is not None:
                add_chunk(self._store, exported.chunk, payload)
                exported, payload = await self._ask(peer, Export())
        except BaseException:
            clear(self._store)
            raise
        self.epoch = answer.epoch
        log.info("%s took over %d rows from its standby", self._name, self._store.num_rows)
        return True

    async def _seed(self, peer: Peer) -> None:
        """Send the current content, then the changes made meanwhile; from then on answers wait."""
        await self._ask(peer, Seed(warehouse=self._index))
        copy = StoreCopy(self._store)
        self._peer, self._backlog = peer, []
        try:
            for chunk, buffers in copy.chunks():
                await self._ask(peer, Import(chunk=chunk), buffers)
        finally:
            if copy.release():
                self._on_room()
        backlog, self._backlog, self._backlog_bytes = self._backlog, None, 0
        for message in backlog:
            self._send(message)
        self._synchronous = True
        last_frame = self._sent + 1
        self._waiting = deque((last_frame, call) for _, call in self._waiting)
        await self._ask(peer, Import(epoch=self.epoch))
        self.replicated = True

    async def _watch(self, peer: Peer) -> None:
        """Wait until the connection ends. Raises TimeoutError when the standby confirms nothing for too
        long."""
        last_progress, since = (-1, -1), time.monotonic()
        while not self._ended.is_set():
            progress = (self._confirmed, peer.unsent_bytes)
            if progress != last_progress or self._sent == self._confirmed:
                last_progress, since = progress, time.monotonic()
            if time.monotonic() - since > SILENT_SECONDS:
                raise TimeoutError(f"it confirmed nothing for {SILENT_SECONDS:.0f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENT_SECONDS / 10):
                    await self._ended.wait()
        raise self._failure or ConnectionError("the connection was closed")

    async def _ask(
        self, peer: Peer, message: Request[A], buffers: Sequence[memoryview] = ()
    ) -> tuple[A, memoryview]:
        """Send a request; return the answer and its payload."""
        if self._ended.is_set():
            raise self._failure or ConnectionError("the connection was closed")
        awaited = _PendingAnswer(message.answer, asyncio.get_running_loop().create_future())
        self._sent += 1
        self._answers[self._sent] = awaited
        async with asyncio.timeout(SILENT_SECONDS):
            await peer.send(Reply(message=message, buffers=buffers))
            answer, payload = await awaited.future
        assert isinstance(answer, message.answer), "read as another type"
        return answer, payload

    def _send(self, message: Reply) -> None:
        assert self._peer is not None, "forward before connect"
        self._sent += 1
        self._peer.send_now(message)

    def _new_peer(self) -> Peer:
        self._ended, self._failure = asyncio.Event(), None
        self._sent = self._confirmed = 0
        ended = self._ended
        peer = Peer(
            on_frame=self._on_frame,
            on_lost=lambda peer: self._lost(ended),
            on_malformed=_log_malformed,
        )
        peer.trusted = True
        return peer

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind is not FrameKind.DONE:
            self._failure = DockRefused(frame.read(FailureReply).text)
            peer.close()
            return
        awaited = self._answers.get(self._confirmed + 1)
        answer = frame.read(DoneReply if awaited is None else awaited.form)
        self._confirmed += 1
        self._answers.pop(self._confirmed, None)
        if awaited is not None and not awaited.future.done():
            awaited.future.set_result((answer, frame.payload))
        while self._waiting and self._waiting[0][0] <= self._confirmed:
            self._waiting.popleft()[1]()

    def _lost(self, ended: asyncio.Event) -> None:
        ended.set()
        if ended is self._ended:
            for awaited in self._answers.values():
                if not awaited.future.done():
                    error = self._failure or ConnectionError("the connection was closed")
                    awaited.future.set_exception(error)
            self._go_alone()

    def _go_alone(self) -> None:
        """Continue without the standby, which is outdated from now on; execute all waiting calls."""
        self._peer, self._backlog, self._backlog_bytes = None, None, 0
        self._answers.clear()
        self.replicated = False
        if self._synchronous:
            self._synchronous = False
            self.times_alone += 1
            self.epoch = next_term(self.epoch)
            log.warning(
                "%s goes on alone: rows are held once until its standby is back", self._name
            )
            self._on_alone()
        while self._waiting:
            self._waiting.popleft()[1]()


@dataclass(frozen=True, slots=True)
class _PendingAnswer:
    form: type[DockMessage]
    future: asyncio.Future[tuple[DockMessage, memoryview]]


def _log_malformed(peer: Peer, error: MalformedFrame) -> None:
    log.warning("a standby answered what cannot be read: %s", error)
