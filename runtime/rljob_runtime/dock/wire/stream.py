"""Frames over a connected socket, for a caller that waits: every send and receive has a deadline.

Used by `Channel`. An answer that is small comes with one call of the system; a large payload goes
straight into memory of its own.
"""

import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from xxhash import xxh3_64

from rljob_runtime.dock.recycled import empty
from rljob_runtime.dock.wire.busy import BusyLook
from rljob_runtime.dock.wire.frames import (
    HEAD_BYTES,
    SUM_BYTES,
    Frame,
    Message,
    check_body,
    pack,
    read_head,
)

MAX_BUFFERS = 512
PIECE_BYTES = 1 << 20
"""Summed at a time, while the system sends those before or takes those behind."""
INBOX_BYTES = 64 << 10
LEAST_SECONDS = 0.05
"""Given to a send or receive even when its deadline is over: what is there now is taken."""


class Stream:
    """One connection, owned from now on. One frame at a time: nothing follows an answer unasked.

    Methods raise OSError (TimeoutError past the deadline), EOFError when the peer closed.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._inbox = memoryview(bytearray(INBOX_BYTES))
        self._start = self._end = 0
        self._known = False
        self._look = BusyLook()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connected, select.POLLIN)
        self._writable.register(connected, select.POLLOUT)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()

    def send(self, message: Message, buffers: Sequence[Any], deadline: float) -> None:
        """One frame; the buffers are not copied."""
        size = sum(len(part) for part in buffers)
        packed = memoryview(pack(message, size))
        total = xxh3_64(packed[HEAD_BYTES:])
        pending, held = [packed], 0
        for piece in _pieces(buffers):
            total.update(piece)
            pending.append(piece)
            held += len(piece)
            if held >= PIECE_BYTES or len(pending) == MAX_BUFFERS:
                self._send(pending, deadline)
                pending, held = [], 0
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
        """The next frame. Raises MalformedFrame too; DamagedFrame is an OSError."""
        self._start = self._end = 0
        return self._receive(deadline)

    def receive_descriptors(self, most: int, deadline: float) -> tuple[Frame, list[int]]:
        """The next frame and the file descriptors that came with it, which are the caller's then."""
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
        kind, header_bytes, payload_bytes = read_head(head, trusted=self._known)
        header = self._take(header_bytes, deadline)
        total = xxh3_64(header)
        payload = self._own(payload_bytes, deadline, total) if payload_bytes else header[:0]
        sent = self._take(SUM_BYTES, deadline)
        check_body(total.digest(), sent, kind, header_bytes + payload_bytes)
        self._known = True
        return Frame(kind, header, payload)

    def _take(self, num_bytes: int, deadline: float) -> memoryview:
        """The next bytes, of use until more are received."""
        if self._start + num_bytes > INBOX_BYTES:
            return self._own(num_bytes, deadline, xxh3_64())
        while self._end - self._start < num_bytes:
            self._end += self._receive_into(self._inbox[self._end :], deadline)
        self._start += num_bytes
        return self._inbox[self._start - num_bytes : self._start]

    def _own(self, num_bytes: int, deadline: float, total: xxh3_64) -> memoryview:
        """The next bytes, in memory of their own, added to the sum."""
        view = empty(num_bytes).data
        have = min(num_bytes, self._end - self._start)
        view[:have] = self._inbox[self._start : self._start + have]
        self._start += have
        summed = 0
        while have < num_bytes:
            if have - summed >= PIECE_BYTES:
                total.update(view[summed:have])
                summed = have
            have += self._receive_into(view[have:], deadline)
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
        if self._look.until(lambda: poll.poll(0)):
            return
        seconds = max(LEAST_SECONDS, deadline - time.monotonic())
        if not poll.poll(1000 * seconds):
            raise TimeoutError(f"nothing moved for {seconds:.3g} s")


def _pieces(buffers: Sequence[Any]) -> Iterator[memoryview]:
    for part in buffers:
        whole = memoryview(part)
        for first in range(0, len(whole), PIECE_BYTES):
            yield whole[first : first + PIECE_BYTES]
