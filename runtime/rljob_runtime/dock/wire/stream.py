"""Frames over a connected socket, for a caller that blocks: every send and receive has a deadline.

Used by `Channel`. A small answer is received with one system call; a large payload is received directly into
its final memory.
"""

import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from xxhash import xxh3_64

from rljob_runtime.dock.recycled import empty
from rljob_runtime.dock.wire.busy import BusyPoller
from rljob_runtime.dock.wire.frames import (
    HEAD_BYTES,
    SUM_BYTES,
    DockMessage,
    Frame,
    check_body,
    pack,
    read_head,
)

MAX_BUFFERS = 512
CHUNK_BYTES = 1 << 20
"""Bytes that are summed at a time, while the system sends the previous or receives the next ones."""
INBOX_BYTES = 64 << 10
LEAST_SECONDS = 0.05
"""Minimum time for a send or receive even after its deadline, so that available data is received."""


class Stream:
    """Sends and receives frames on one connection, which it owns.

    There is one frame at a time: no frame follows an answer without a request. Methods raise OSError
    (TimeoutError past the deadline), EOFError when the peer closed.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = self._end = 0
        self._trusted = False
        self._poller = BusyPoller()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection to the peer."""
        self._socket.close()

    def send(self, message: DockMessage, buffers: Sequence[Any], deadline: float) -> None:
        """Send one frame; the buffers are not copied."""
        size = sum(len(buffer) for buffer in buffers)
        packed = memoryview(pack(message, size))
        total = xxh3_64(packed[HEAD_BYTES:])
        pending, pending_bytes = [packed], 0
        for chunk in _chunks(buffers):
            total.update(chunk)
            pending.append(chunk)
            pending_bytes += len(chunk)
            if pending_bytes >= CHUNK_BYTES or len(pending) == MAX_BUFFERS:
                self._send(pending, deadline)
                pending, pending_bytes = [], 0
        self._send([*pending, memoryview(total.digest())], deadline)

    def _send(self, pending: list[memoryview], deadline: float) -> None:
        while pending:
            try:
                sent = self._socket.sendmsg(pending[:MAX_BUFFERS])
            except BlockingIOError:
                self._wait(self._writable, deadline)
                continue
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if pending and sent:
                pending[0] = pending[0][sent:]

    def receive(self, deadline: float) -> Frame:
        """Return the next frame. Raises MalformedFrame too; DamagedFrame is an OSError."""
        self._start = self._end = 0
        return self._receive(deadline)

    def receive_descriptors(self, most: int, deadline: float) -> tuple[Frame, list[int]]:
        """Return the next frame and the file descriptors that came with it; the caller owns them."""
        self._wait(self._readable, deadline)
        start, descriptors, _, _ = socket.recv_fds(self._socket, HEAD_BYTES, most)
        self._start, self._end = 0, len(start)
        self._inbox[: len(start)] = start
        try:
            return self._receive(deadline), list(descriptors)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def _receive(self, deadline: float) -> Frame:
        head = self._take(HEAD_BYTES, deadline)
        kind, header_bytes, payload_bytes = read_head(head, trusted=self._trusted)
        header = self._take(header_bytes, deadline)
        total = xxh3_64(header)
        payload = self._take_large(payload_bytes, deadline, total) if payload_bytes else header[:0]
        sent = self._take(SUM_BYTES, deadline)
        check_body(total.digest(), sent, kind, header_bytes + payload_bytes)
        self._trusted = True
        return Frame(kind, header, payload)

    def _take(self, num_bytes: int, deadline: float) -> memoryview:
        """Return the next bytes, valid until more are received."""
        if self._start + num_bytes > INBOX_BYTES:
            return self._take_large(num_bytes, deadline, xxh3_64())
        while self._end - self._start < num_bytes:
            self._end += self._receive_into(self._inbox[self._end :], deadline)
        self._start += num_bytes
        return self._inbox[self._start - num_bytes : self._start]

    def _take_large(self, num_bytes: int, deadline: float, total: xxh3_64) -> memoryview:
        """Return the next bytes in separate memory, and add them to the sum."""
        view = empty(num_bytes).data
        num_received = min(num_bytes, self._end - self._start)
        view[:num_received] = self._inbox[self._start : self._start + num_received]
        self._start += num_received
        summed = 0
        while num_received < num_bytes:
            if num_received - summed >= CHUNK_BYTES:
                total.update(view[summed:num_received])
                summed = num_received
            num_received += self._receive_into(view[num_received:], deadline)
        total.update(view[summed:])
        return view

    def _receive_into(self, view: memoryview, deadline: float) -> int:
        while True:
            self._wait(self._readable, deadline)
            try:
                received = self._socket.recv_into(view)
            except BlockingIOError:
                continue
            if not received:
                raise EOFError("the connection was closed")
            return received

    def _wait(self, poll: select.poll, deadline: float) -> None:
        if self._poller.until(lambda: poll.poll(0)):
            return
        seconds = max(LEAST_SECONDS, deadline - time.monotonic())
        if not poll.poll(1000 * seconds):
            raise TimeoutError(f"nothing moved for {seconds:.3g} s")


def _chunks(buffers: Sequence[Any]) -> Iterator[memoryview]:
    for buffer in buffers:
        view = memoryview(buffer)
        for first in range(0, len(view), CHUNK_BYTES):
            yield view[first : first + CHUNK_BYTES]
