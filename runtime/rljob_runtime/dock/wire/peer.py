"""One connection of a dock server: reads frames, checks the token, answers one request at a time.

Shared by warehouse and controller servers, and by the controller's link to a warehouse. Refused frames are
counted, and answered where the peer can decode the answer. No input can stop the server.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xxhash import xxh3_64, xxh3_64_digest

from rljob_runtime.dock.wire import unix
from rljob_runtime.dock.wire.frames import (
    HEAD_BYTES,
    MAX_STRANGER_BYTES,
    SUM_BYTES,
    DockMessage,
    Frame,
    FrameKind,
    MalformedFrame,
    check_body,
    pack,
    read_head,
)
from rljob_runtime.dock.wire.messages import DONE
from rljob_runtime.dock.wire.tcp import notice_silence

READ_BYTES = 256 << 10
STRANGER_BYTES = 2 * MAX_STRANGER_BYTES
"""Buffer size of a connection that has not sent the token: more than one of its frames may have."""
CHUNK_BYTES = 1 << 20
MAX_BUFFERS = 512
NO_PAYLOAD = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer or a request to a peer: a message and raw column bytes, which are sent without joining large
    ones.

    on_sent: called once the buffers are not used any more, sent or not. descriptors: sent with a small answer
    over a unix socket, then closed here.
    """

    message: DockMessage = DONE
    buffers: Sequence[Any] = ()
    close: bool = False
    on_sent: Callable[[], None] | None = None
    descriptors: Sequence[int] = ()

    @property
    def num_bytes(self) -> int:
        """The total size of the buffers."""
        return sum(map(len, self.buffers)) if self.buffers else 0


Answer = Reply | Awaitable[Reply]


class Peer(asyncio.BufferedProtocol):
    """Receives and sends frames on one connection.

    on_frame: answers a frame, immediately or later. on_lost: called when the connection is gone.
    on_malformed: called with the error when bytes are no frame or differ from those that were sent; the
    connection then closes.

    local: True over a unix socket. attached: the peer has mapped the warehouse's memory. cut_off: this side
    ended the connection.
    """

    def __init__(
        self,
        *,
        on_frame: Callable[["Peer", Frame], Answer | None],
        on_lost: Callable[["Peer"], None],
        on_malformed: Callable[["Peer", MalformedFrame], Reply | None],
    ) -> None:
        self.trusted = False
        self.owner = ""
        self.session = ""
        self.local = False
        self.attached = self.cut_off = False
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_malformed = on_malformed
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(STRANGER_BYTES)
        self._filled = 0
        self._body: memoryview | None = None
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._direct: socket.socket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; called by the loop."""
        assert isinstance(transport, asyncio.Transport), "a dock peer speaks over a stream"
        transport.set_write_buffer_limits(
            high=0
        )  # `_room` is set once the transport has sent everything
        sock = transport.get_extra_info("socket")
        self.local = sock.family == socket.AF_UNIX
        if not self.local:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_silence(sock)
        self._transport = transport

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the peer has not received yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the answer that is under way; called by the loop."""
        self._transport = None
        self.attached = False
        self._room.set()
        if self._direct is not None:
            asyncio.get_running_loop().remove_writer(self._direct)
            self._direct.close()
            self._direct = None
        if self._task is not None:
            self._task.cancel()
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Clear `_room`; called by the loop."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Set `_room`; called by the loop."""
        self._room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes; called by the loop. Large bodies are received in place."""
        target = self._buffer if self._body is None else self._body
        return memoryview(target)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes that were received; called by the loop."""
        self._filled += nbytes
        try:
            if self._body is not None:
                if self._filled == len(self._body):
                    self._end_body()
            else:
                self._parse()
                if self.trusted and len(self._buffer) < READ_BYTES:
                    # a new buffer: the loop still uses the old one
                    self._buffer = self._buffer + bytes(READ_BYTES - len(self._buffer))
        except MalformedFrame as error:
            reply = self._on_malformed(self, error)
            if reply is not None:
                self.send_now(reply)
            self.close()

    def close(self) -> None:
        """Send what is pending, then close the connection."""
        if self._transport is not None:
            self.cut_off = True
            self._transport.close()

    def send_now(self, reply: Reply) -> None:
        """Queue a small frame in the transport's buffer."""
        if self._transport is not None and self._open:
            head = pack(reply.message, reply.num_bytes)
            data = b"".join([head, *reply.buffers])
            data += xxh3_64_digest(memoryview(data)[HEAD_BYTES:])
            if reply.descriptors:
                self._send_descriptors(data, reply.descriptors)
            else:
                self._transport.write(data)

    def _send_descriptors(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send past the loop, which does not support descriptors; a peer that cannot receive them now is cut
        off."""
        assert self._transport is not None, "send before connect"
        fileno = self._transport.get_extra_info("socket").fileno()
        if not unix.send_descriptors(fileno, data, descriptors) or self.unsent_bytes:
            self.close()

    async def send(self, reply: Reply) -> None:
        """Send a frame of any size; a large one is never copied into the loop's buffer."""
        if reply.num_bytes <= CHUNK_BYTES:
            self.send_now(reply)
            await self._room.wait()
            return
        await self._room.wait()
        head = memoryview(pack(reply.message, reply.num_bytes))
        total = xxh3_64(head[HEAD_BYTES:])
        pending, pending_bytes = [head], 0
        for buffer in reply.buffers:
            view = memoryview(buffer)
            for first in range(0, len(view), CHUNK_BYTES):
                chunk = view[first : first + CHUNK_BYTES]
                total.update(chunk)
                pending.append(chunk)
                pending_bytes += len(chunk)
                if pending_bytes >= CHUNK_BYTES or len(pending) == MAX_BUFFERS:
                    await self._send_all(pending)
                    pending, pending_bytes = [], 0
        await self._send_all([*pending, memoryview(total.digest())])

    async def _send_all(self, pending: list[memoryview]) -> None:
        """Send past the loop's buffer, which would copy the bytes; nothing else is sent meanwhile."""
        while pending and self._transport is not None and self._open:
            if self._direct is None:
                fileno = self._transport.get_extra_info("socket").fileno()
                self._direct = socket.socket(fileno=os.dup(fileno))
            try:
                sent = self._direct.sendmsg(pending)
            except BlockingIOError:
                await self._writable(self._direct)
                continue
            except OSError:
                self.close()
                return
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if pending:
                pending[0] = pending[0][sent:]

    async def _writable(self, direct: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_writer(direct, ready.set)
        try:
            await ready.wait()
        finally:
            if direct.fileno() >= 0:  # else the connection was lost
                loop.remove_writer(direct)

    def _parse(self) -> None:
        """Deliver every complete frame in the buffer; switch to a separate body for a large one."""
        offset = 0
        view = memoryview(self._buffer)
        while self._filled - offset >= HEAD_BYTES and self._open:
            kind, header_bytes, payload_bytes = read_head(view, offset, trusted=self.trusted)
            header = offset + HEAD_BYTES
            payload = header + header_bytes
            end = payload + payload_bytes + SUM_BYTES
            if end > self._filled:
                if end - offset > READ_BYTES:
                    self._begin_body(view[offset : self._filled], end - offset)
                    return
                break
            self._check(kind, view[header:end])
            frame_payload = NO_PAYLOAD
            if payload_bytes:
                frame_payload = memoryview(bytearray(view[payload : end - SUM_BYTES]))
            self._deliver(kind, view[header:payload], frame_payload)
            offset = end
        num_left = self._filled - offset
        if offset and num_left:
            self._buffer[:num_left] = self._buffer[offset : self._filled]
        self._filled = num_left

    def _begin_body(self, start: memoryview, size: int) -> None:
        # Not a bytearray, which is zeroed: bytes that a head announces and no peer sends take no memory.
        self._body = np.empty(size, dtype=np.uint8).data
        self._body[: len(start)] = start
        self._filled = len(start)

    def _end_body(self) -> None:
        body, self._body, self._filled = self._body, None, 0
        assert body is not None, "no body to end"
        view = memoryview(body)
        kind, header_bytes, _ = read_head(view, trusted=self.trusted)
        self._check(kind, view[HEAD_BYTES:])
        payload = HEAD_BYTES + header_bytes
        self._deliver(kind, view[HEAD_BYTES:payload], view[payload:-SUM_BYTES])

    def _check(self, kind: FrameKind, body: memoryview) -> None:
        sent = body[-SUM_BYTES:]
        body = body[:-SUM_BYTES]
        check_body(xxh3_64_digest(body), sent, kind, len(body))

    def _deliver(self, kind: FrameKind, header: memoryview, payload: memoryview) -> None:
        if self._task is not None:
            raise MalformedFrame("a second request before the first was answered")
        answer = self._on_frame(self, Frame(kind, header, payload))
        if answer is None:
            return
        if isinstance(answer, Reply) and answer.num_bytes <= CHUNK_BYTES:
            self._finish(answer)
            return
        self._task = asyncio.get_running_loop().create_task(self._answer(answer))
        if isinstance(answer, Reply):
            self._task.add_done_callback(lambda _: _notify_sent(answer))

    async def _answer(self, answer: Answer) -> None:
        reply = answer if isinstance(answer, Reply) else await answer
        await self.send(reply)
        self._task = None
        if reply.close:
            self.close()

    def _finish(self, reply: Reply) -> None:
        self.send_now(reply)
        _notify_sent(reply)
        if reply.close:
            self.close()


def _notify_sent(reply: Reply) -> None:
    if reply.on_sent is not None:
        reply.on_sent()
