"""A client's blocking connection to one dock server: one request at a time, reconnecting.

Requests are idempotent by protocol, so one that broke off is sent again to the restarted server
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
from rljob_runtime.dock.wire.encoding import Outgoing
from rljob_runtime.dock.wire.failures import DAMAGED, error_of
from rljob_runtime.dock.wire.frames import DamagedFrame, Frame, Kind, MalformedFrame, Message
from rljob_runtime.dock.wire.messages import Failure, Hello, Request, Waits, Welcome
from rljob_runtime.dock.wire.stream import Stream
from rljob_runtime.errors import DockError, DockTimeout

A = TypeVar("A", bound=Message)

log = logging.getLogger(__name__)

ANSWER_MARGIN_SECONDS = 5.0
"""How much longer than the server's own deadline a client waits for its answer."""
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks. session: unique for each client, so that a restarted owner is another."""

    owner: str
    session: str


class Channel:
    """One connection. find: the dock's address now; role: the server at its end.

    on_connect: called with the frame of the welcome after each (re)connection.
    """

    def __init__(
        self,
        *,
        role: str,
        find: Callable[[], DockAddress],
        identity: Identity,
        on_connect: Callable[["Channel", Frame], None] | None = None,
    ) -> None:
        self.role = role
        self._find = find
        self._identity = identity
        self._on_connect = on_connect
        self._stream: Stream | None = None

    def fileno(self) -> int:
        """The socket's descriptor, -1 when not connected; readable while idle means lost."""
        return -1 if self._stream is None else self._stream.fileno()

    def ask(
        self, message: Request[A], columns: Outgoing | None = None, *, timeout_seconds: float
    ) -> A:
        """As request, where the answer has no payload."""
        return self.request(message, columns, timeout_seconds=timeout_seconds)[0]

    def request(
        self, message: Request[A], columns: Outgoing | None = None, *, timeout_seconds: float
    ) -> tuple[A, memoryview]:
        """Send and wait for the answer and its payload, reconnecting until the deadline.

        columns: their heads become the message's. timeout_seconds: also what a server is told that may let
        the message wait (what is left). Raises DockTimeout when the server is not reached, and what the
        server answers.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self._connect(deadline)
                left = max(0.0, deadline - time.monotonic())
                if isinstance(message, Waits):
                    message = msgspec.structs.replace(message, timeout=left)
                limit = deadline + ANSWER_MARGIN_SECONDS
                self._send(message, columns, limit)
                answer = self._receive(limit)
                return answer.read(message.answer), answer.payload
            except (OSError, EOFError) as error:  # a DamagedFrame too
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

    def notify(self, message: Message) -> None:
        """Send what has no answer; lost with the connection if that is broken."""
        if self._stream is None:
            return
        try:
            self._stream.send(message, (), time.monotonic() + ANSWER_MARGIN_SECONDS)
        except OSError:
            self.close()

    def close(self) -> None:
        """Disconnect; the next request connects again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connect(self, deadline: float) -> None:
        if self._stream is not None:
            return
        left = max(PAUSE_SECONDS, deadline - time.monotonic())
        place = self._find().server(self.role)
        self._stream = Stream(tcp.connect(place, left))
        try:
            self._welcomed(self._hello(deadline), deadline)
        except DockError:
            self.close()
            raise

    def _hello(self, deadline: float) -> Frame:
        """Show the token; returns the welcome."""
        hello = Hello(
            token=self._find().token,
            role=self.role,
            owner=self._identity.owner,
            session=self._identity.session,
        )
        assert self._stream is not None, "hello before connect"
        self._stream.send(hello, (), deadline + ANSWER_MARGIN_SECONDS)
        return self._receive(deadline + ANSWER_MARGIN_SECONDS)

    def _welcomed(self, frame: Frame, deadline: float) -> None:
        """The server knows us now."""
        if self._on_connect is not None:
            self._on_connect(self, frame)
        self._go_local(frame, deadline)

    def _go_local(self, frame: Frame, deadline: float) -> None:
        """To a server of this machine over its unix socket, where it has one that is reached."""
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
        """Go on over the unix socket, with its welcome; over TCP again when that or the block fails."""
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

    def _send(self, message: Message, columns: Outgoing | None, deadline: float) -> None:
        assert self._stream is not None, "send before connect"
        parts: Sequence[memoryview | bytes] = ()
        if columns is not None:
            heads, parts = columns.payload()
            message = msgspec.structs.replace(message, columns=heads)
        self._stream.send(message, parts, deadline)

    def _receive(self, deadline: float) -> Frame:
        """The answer. Raises the error that the server answered with."""
        assert self._stream is not None, "receive before connect"
        return _answered(self._stream.receive(deadline))

    def _receive_descriptors(self, count: int, deadline: float) -> list[int]:
        """Wait for an answer with so many file descriptors, which are the caller's then."""
        assert self._stream is not None, "receive before connect"
        frame, descriptors = self._stream.receive_descriptors(count, deadline)
        _answered(frame)
        if len(descriptors) != count:
            raise DockError(f"{self.role} answered with {len(descriptors)} of {count} descriptors")
        return descriptors


def _answered(frame: Frame) -> Frame:
    if frame.kind is Kind.FAILED:
        failure = frame.read(Failure)
        raise DamagedFrame(failure.text) if failure.code == DAMAGED else error_of(failure)
    return frame
