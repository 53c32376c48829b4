"""A client's blocking connection to one dock server: one request at a time, reconnecting.

Requests are idempotent by protocol. A request that was interrupted is sent again to the restarted server
until its deadline.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire import tcp, unix
from rljob_runtime.dock.wire.encoding import OutgoingColumns
from rljob_runtime.dock.wire.failures import DAMAGED, error_of
from rljob_runtime.dock.wire.frames import (
    DamagedFrame,
    DockMessage,
    Frame,
    FrameKind,
    MalformedFrame,
)
from rljob_runtime.dock.wire.messages import FailureReply, Hello, Request, WaitingRequest, Welcome
from rljob_runtime.dock.wire.stream import Stream
from rljob_runtime.errors import DockError, DockTimeout

A = TypeVar("A", bound=DockMessage)

log = logging.getLogger(__name__)

ANSWER_MARGIN_SECONDS = 5.0
"""Time that a client waits for an answer beyond the server's own deadline."""
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientIdentity:
    """The identity of a client. session: unique for each client, so that a restarted owner has a new one."""

    owner: str
    session: str


class Channel:
    """A connection to one server.

    find: returns the dock's current address. role: the server at the other end. on_connect: called with the
    frame of the welcome after each (re)connection.
    """

    def __init__(
        self,
        *,
        role: str,
        find: Callable[[], DockAddress],
        identity: ClientIdentity,
        on_connect: Callable[["Channel", Frame], None] | None = None,
    ) -> None:
        self.role = role
        self._resolve = find
        self._identity = identity
        self._on_connect = on_connect
        self._stream: Stream | None = None

    def fileno(self) -> int:
        """Return the socket's descriptor, -1 when not connected; readable while idle means that it is
        lost."""
        return -1 if self._stream is None else self._stream.fileno()

    def ask(
        self, message: Request[A], columns: OutgoingColumns | None = None, *, timeout_seconds: float
    ) -> A:
        """Send a request whose answer has no payload; see `request`."""
        return self.request(message, columns, timeout_seconds=timeout_seconds)[0]

    def request(
        self, message: Request[A], columns: OutgoingColumns | None = None, *, timeout_seconds: float
    ) -> tuple[A, memoryview]:
        """Send and wait for the answer and its payload, reconnecting until the deadline.

        columns: their heads become the message's. timeout_seconds: the remaining part of it is also sent to a
        server that may let the message wait. Raises DockTimeout when the server is not reached, and the error
        that the server answers with.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self._connect(deadline)
                remaining = max(0.0, deadline - time.monotonic())
                if isinstance(message, WaitingRequest):
                    message = msgspec.structs.replace(message, timeout=remaining)
                limit = deadline + ANSWER_MARGIN_SECONDS
                self._send(message, columns, limit)
                answer = self._receive(limit)
                return answer.read(message.answer), answer.payload
            except (OSError, EOFError) as error:  # includes DamagedFrame
                if isinstance(error, DamagedFrame):
                    log.warning("%s asked again: %s", self.role, error)
                self.close()
                if time.monotonic() + PAUSE_SECONDS > deadline:
                    raise DockTimeout(
                        f"{message.kind.name.lower()} waited {timeout_seconds:.3g} s for {self.role}: "
                        f"{str(error) or type(error).__name__}"
                    ) from error
                time.sleep(PAUSE_SECONDS)
            except MalformedFrame as error:
                self.close()
                raise DockError(f"{self.role} answered what cannot be read: {error}") from error

    def notify(self, message: DockMessage) -> None:
        """Send a message without an answer; it is lost with the connection if that is broken."""
        if self._stream is None:
            return
        try:
            self._stream.send(message, (), time.monotonic() + ANSWER_MARGIN_SECONDS)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the connection; the next request connects again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self, deadline: float) -> None:
        if self._stream is not None:
            return
        remaining = max(PAUSE_SECONDS, deadline - time.monotonic())
        address = self._resolve().server(self.role)
        self._stream = Stream(tcp.connect(address, remaining))
        try:
            self._on_welcome(self._hello(deadline), deadline)
        except DockError:
            self.close()
            raise

    def _hello(self, deadline: float) -> Frame:
        """Send the token; return the frame of the welcome."""
        hello = Hello(
            token=self._resolve().token,
            role=self.role,
            owner=self._identity.owner,
            session=self._identity.session,
        )
        assert self._stream is not None, "hello before connect"
        self._stream.send(hello, (), deadline + ANSWER_MARGIN_SECONDS)
        return self._receive(deadline + ANSWER_MARGIN_SECONDS)

    def _on_welcome(self, frame: Frame, deadline: float) -> None:
        """Report the connection and switch to a local path where there is one."""
        if self._on_connect is not None:
            self._on_connect(self, frame)
        self._use_local_path(frame, deadline)

    def _use_local_path(self, frame: Frame, deadline: float) -> None:
        """Switch to the server's unix socket where it is on this machine and reachable."""
        welcome = frame.read(Welcome)
        if not welcome.socket or welcome.machine != unix.machine_id():
            return
        try:
            with self._over_socket(Path(welcome.socket), deadline):
                pass
        except (OSError, EOFError, MalformedFrame, DockError) as error:
            log.debug("%s is reached over TCP: %s", self.role, error)

    @contextlib.contextmanager
    def _over_socket(self, path: Path, deadline: float) -> Iterator[Frame]:
        """Switch to the unix socket and yield its welcome; return to TCP when that or the block fails."""
        over_tcp, self._stream = self._stream, None
        assert over_tcp is not None, "move before connect"
        try:
            self._stream = Stream(unix.connect(path, max(0.1, deadline - time.monotonic())))
            yield self._hello(deadline)
        except BaseException:
            Channel.close(self)
            self._stream = over_tcp
            raise
        over_tcp.close()

    def _send(self, message: DockMessage, columns: OutgoingColumns | None, deadline: float) -> None:
        assert self._stream is not None, "send before connect"
        buffers: Sequence[memoryview | bytes] = ()
        if columns is not None:
            heads, buffers = columns.payload()
            message = msgspec.structs.replace(message, columns=heads)
        self._stream.send(message, buffers, deadline)

    def _receive(self, deadline: float) -> Frame:
        """Return the answer. Raises the error that the server answered with."""
        assert self._stream is not None, "receive before connect"
        return _raise_failure(self._stream.receive(deadline))

    def _receive_descriptors(self, count: int, deadline: float) -> list[int]:
        """Wait for an answer with `count` file descriptors; the caller owns them."""
        assert self._stream is not None, "receive before connect"
        frame, descriptors = self._stream.receive_descriptors(count, deadline)
        _raise_failure(frame)
        if len(descriptors) != count:
            raise DockError(f"{self.role} answered with {len(descriptors)} of {count} descriptors")
        return descriptors


def _raise_failure(frame: Frame) -> Frame:
    if frame.kind is FrameKind.FAILED:
        failure = frame.read(FailureReply)
        raise DamagedFrame(failure.text) if failure.code == DAMAGED else error_of(failure)
    return frame
