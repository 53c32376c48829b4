"""A client's blocking connection to one dock server: one request at a time, reconnecting.

Requests are idempotent by protocol, so one that broke off is sent again to the restarted server
until its deadline.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.frames import (
    HEAD,
    Fields,
    Frame,
    Kind,
    MalformedFrame,
    pack,
    read_head,
    read_header,
)
from rljob_runtime.errors import (
    DockError,
    DockFull,
    DockLost,
    DockRefused,
    DockStale,
    DockTimeout,
)

ERRORS: dict[str, type[DockError]] = {
    "timeout": DockTimeout,
    "full": DockFull,
    "lost": DockLost,
    "stale": DockStale,
    "refused": DockRefused,
}
ANSWER_MARGIN_SECONDS = 5.0
"""How much longer than the server's own deadline a client waits for its answer."""
PAUSE_SECONDS = 0.05
MAX_BUFFERS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks. session: unique for each client, so that a restarted owner is another."""

    owner: str
    session: str


class Channel:
    """One connection. find: the dock's address now; role: the server at its end.

    on_connect: called with the welcome after each (re)connection.
    """

    def __init__(
        self,
        *,
        role: str,
        find: Callable[[], DockAddress],
        identity: Identity,
        on_connect: Callable[["Channel", Fields], None] | None = None,
    ) -> None:
        self.role = role
        self._find = find
        self._identity = identity
        self._on_connect = on_connect
        self._socket: socket.socket | None = None

    def fileno(self) -> int:
        """The socket's descriptor, -1 when not connected; readable while idle means lost."""
        return -1 if self._socket is None else self._socket.fileno()

    def request(
        self,
        kind: Kind,
        header: dict[str, Any],
        buffers: Sequence[Any] = (),
        *,
        timeout_seconds: float,
    ) -> Frame:
        """Send and wait for the answer, reconnecting until the deadline.

        timeout_seconds: also what the server is told (field `timeout`, what is left of it).
        Raises DockTimeout when the server is not reached, and what the server answers.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self._connect(deadline)
                left = max(0.0, deadline - time.monotonic())
                self._send(kind, {**header, "timeout": left}, buffers, deadline)
                return self._receive(deadline + ANSWER_MARGIN_SECONDS)
            except (OSError, EOFError) as error:
                self.close()
                if time.monotonic() + PAUSE_SECONDS > deadline:
                    raise DockTimeout(
                        f"{kind.name.lower()} waited {timeout_seconds:.3g} s for {self.role}: "
                        f"{str(error) or type(error).__name__}"
                    ) from error
                time.sleep(PAUSE_SECONDS)
            except MalformedFrame as error:
                self.close()
                raise DockError(f"{self.role} answered what cannot be read: {error}") from error

    def notify(self, kind: Kind, header: dict[str, Any]) -> None:
        """Send what has no answer; lost with the connection if that is broken."""
        if self._socket is None:
            return
        try:
            self._send(kind, header, (), time.monotonic())
        except OSError:
            self.close()

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, deadline: float) -> None:
        if self._socket is not None:
            return
        left = max(PAUSE_SECONDS, deadline - time.monotonic())
        self._socket = socket.create_connection(self._find().server(self.role), timeout=left)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._welcomed(self._hello(deadline), deadline)
        except DockError:
            self.close()
            raise

    def _hello(self, deadline: float) -> Fields:
        """Show the token; returns the welcome."""
        hello = {
            "token": self._find().token,
            "role": self.role,
            "owner": self._identity.owner,
            "session": self._identity.session,
        }
        self._send(Kind.HELLO, hello, (), deadline)
        return self._receive(deadline + ANSWER_MARGIN_SECONDS).fields

    def _welcomed(self, welcome: Fields, deadline: float) -> None:
        """The server knows us now."""
        if self._on_connect is not None:
            self._on_connect(self, welcome)

    def _send(
        self, kind: Kind, header: dict[str, Any], buffers: Sequence[Any], deadline: float
    ) -> None:
        assert self._socket is not None, "send before connect"
        self._socket.settimeout(
            max(PAUSE_SECONDS, deadline + ANSWER_MARGIN_SECONDS - time.monotonic())
        )
        size = sum(len(part) for part in buffers)
        pending = [memoryview(pack(kind, header, size))]
        pending += [memoryview(part) for part in buffers if len(part)]
        while pending:
            sent = self._socket.sendmsg(pending[:MAX_BUFFERS])
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if pending and sent:
                pending[0] = pending[0][sent:]

    def _receive(self, deadline: float) -> Frame:
        return self._receive_rest(self._receive_exactly(HEAD.size, deadline), deadline)

    def _receive_descriptor(self, deadline: float) -> int:
        """Wait for an answer with a file descriptor, which is the caller's then."""
        assert self._socket is not None, "receive before connect"
        self._socket.settimeout(max(PAUSE_SECONDS, deadline - time.monotonic()))
        start, descriptors, _, _ = socket.recv_fds(self._socket, HEAD.size, 1)
        try:
            rest = self._receive_exactly(HEAD.size - len(start), deadline) if start else b""
            self._receive_rest(memoryview(start + bytes(rest)), deadline)
            if not descriptors:
                raise DockError(f"{self.role} answered without a descriptor")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return descriptors[0]

    def _receive_rest(self, head: memoryview, deadline: float) -> Frame:
        if len(head) < HEAD.size:
            raise EOFError("the connection was closed")
        kind, header_bytes, payload_bytes = read_head(head, trusted=True)
        fields = read_header(self._receive_exactly(header_bytes, deadline))
        if kind is Kind.FAILED:
            raise ERRORS.get(fields.text("code"), DockError)(fields.text("text"))
        payload = self._receive_exactly(payload_bytes, deadline)
        return Frame(kind=kind, fields=fields, payload=payload)

    def _receive_exactly(self, num_bytes: int, deadline: float) -> memoryview:
        assert self._socket is not None, "receive before connect"
        view = memoryview(bytearray(num_bytes))
        filled = 0
        while filled < num_bytes:
            self._socket.settimeout(max(PAUSE_SECONDS, deadline - time.monotonic()))
            received = self._socket.recv_into(view[filled:])
            if not received:
                raise EOFError("the connection was closed")
            filled += received
        return view
