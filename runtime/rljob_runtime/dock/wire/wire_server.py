"""The base of both dock servers: listening, the token, dispatch, refusals and their counts.

`WarehouseServer` and `ControllerServer` add their answers. One asyncio loop, one thread: a request is atomic
without locks.
"""

import asyncio
import hmac
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rljob_runtime.dock.wire import unix
from rljob_runtime.dock.wire.failures import DAMAGED, failure_of
from rljob_runtime.dock.wire.frames import (
    DamagedFrame,
    DockMessage,
    Frame,
    FrameKind,
    MalformedFrame,
)
from rljob_runtime.dock.wire.messages import FailureReply, Hello, Welcome
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply
from rljob_runtime.errors import DockError, DockRefused

M = TypeVar("M", bound=DockMessage)

log = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
"""Time after which a connection that has not sent the token is closed."""
STRANGERS, PATIENCE_SECONDS = 64, 1.0
"""Number of connections that may be silent for longer than PATIENCE_SECONDS; one more closes the oldest."""


class DockServer:
    """Listens on host:port (0: any) and answers peers that send the token.

    role: "warehouse/0" or "controller/reward"; a peer that expects another role is refused. shared_directory:
    where its unix socket is, for processes of this machine; None: it has no socket.
    """

    def __init__(
        self, *, role: str, token: str, host: str, port: int, shared_directory: str | None
    ) -> None:
        self.role = role
        self.refused: Counter[str] = Counter()
        self._requests: Counter[FrameKind] = Counter()
        self._failed_requests = 0
        self.peers: set[Peer] = set()
        self._strangers: dict[Peer, float] = {}
        self._token = token.encode()
        self._host, self._port = host, port
        self._servers: list[asyncio.Server] = []
        self._shared_directory = shared_directory
        self._socket_path: Path | None = None
        self._no_socket = "it was given no shared directory"
        self._answers: dict[FrameKind, Callable[[Peer, Frame], Answer | None]] = {}

    async def start(self) -> tuple[str, int]:
        """Listen for connections; return (host, port)."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._new_peer, self._host, self._port, reuse_address=True
        )
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        log.info("dock %s listens on %s:%d", self.role, host, port)
        if self._shared_directory is not None:
            await self._listen_locally(Path(self._shared_directory))
        return str(host), int(port)

    async def stop(self) -> None:
        """Close the listeners and every connection."""
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)
        for server in self._servers:
            server.close()
        for peer in list(self.peers):
            peer.close()
        for server in self._servers:
            await server.wait_closed()
        await asyncio.sleep(0)

    @property
    def requests(self) -> Counter[str]:
        """Requests by kind, and `failed`: those that were answered with an error."""
        counts = Counter({kind.name.lower(): count for kind, count in self._requests.items()})
        if self._failed_requests:
            counts["failed"] = self._failed_requests
        return counts

    def welcome(self) -> Welcome:
        """Return the answer to a peer that sent the right token."""
        return Welcome(
            role=self.role,
            machine=unix.machine_id(),
            socket=str(self._socket_path or ""),
            no_socket="" if self._socket_path else self._no_socket,
        )

    def greet(self, hello: Hello) -> Answer:
        """Return the answer to a hello with the right token."""
        return Reply(message=self.welcome())

    def answer(
        self, form: type[M], handler: Callable[[Peer, M, memoryview], Answer | None]
    ) -> None:
        """Register the handler of a message type. It gets the peer, the message and the payload."""
        self._answers[form.kind] = lambda peer, frame: handler(
            peer, frame.read(form), frame.payload
        )

    def peer_lost(self, peer: Peer) -> None:
        """React to the loss of a trusted peer's connection."""

    async def _listen_locally(self, directory: Path) -> None:
        """Open the unix socket; where that fails, every welcome carries the reason."""
        try:
            listener, path = unix.listen(directory, self.role.replace("/", "-"))
        except OSError as error:
            self._no_socket = f"{directory}: {error.strerror or error}"
            log.warning("dock %s has no unix socket: %s", self.role, self._no_socket)
            return
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._new_peer, sock=listener))
        self._socket_path = path

    def _new_peer(self) -> Peer:
        peer = Peer(on_frame=self._on_frame, on_lost=self._on_lost, on_malformed=self._on_malformed)
        loop = asyncio.get_running_loop()
        self.peers.add(peer)
        self._strangers[peer] = loop.time()
        oldest, since = next(iter(self._strangers.items()))
        if len(self._strangers) > STRANGERS and loop.time() - since > PATIENCE_SECONDS:
            self._close_stranger(oldest)
        loop.call_later(HELLO_SECONDS, self._close_stranger, peer)
        return peer

    def _close_stranger(self, peer: Peer) -> None:
        if self._strangers.pop(peer, None) is not None:
            self.refused["silent"] += 1
            peer.close()

    def _on_lost(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self._strangers.pop(peer, None)
        if peer.trusted:
            self.peer_lost(peer)

    def _on_malformed(self, peer: Peer, error: MalformedFrame) -> Reply:
        damaged = isinstance(error, DamagedFrame)
        self.refused["damaged" if damaged else "malformed"] += 1
        owner = peer.owner or "a stranger"
        log.warning("dock %s refused a frame of %s: %s", self.role, owner, error)
        text = f"{self.role} refused a frame: {error}"
        return _closing(FailureReply(code=DAMAGED, text=text)) if damaged else _refusal(text)

    def _on_frame(self, peer: Peer, frame: Frame) -> Answer | None:
        if not peer.trusted:
            return self._greet(peer, frame)
        self._requests[frame.kind] += 1
        answer = self._answers.get(frame.kind)
        if answer is None:
            raise MalformedFrame(f"{frame.kind.name} is nothing that {self.role} answers")
        try:
            reply = answer(peer, frame)
        except Exception as error:
            return self._failed(peer, error)
        if reply is None or isinstance(reply, Reply):
            return reply
        return self._guarded(peer, reply)

    async def _guarded(self, peer: Peer, answer: Answer) -> Reply:
        assert not isinstance(answer, Reply), "a ready reply needs no guard"
        try:
            return await answer
        except Exception as error:
            return self._failed(peer, error)

    def _failed(self, peer: Peer, error: Exception) -> Reply:
        if isinstance(error, DockError):
            self._failed_requests += 1
            return Reply(message=failure_of(error))
        if isinstance(error, MalformedFrame):
            return self._on_malformed(peer, error)
        self.refused["internal"] += 1
        log.error("dock %s failed on a request", self.role, exc_info=error)
        unforeseen = DockError(f"{self.role} failed: {type(error).__name__}: {error}")
        return Reply(message=failure_of(unforeseen))

    def _greet(self, peer: Peer, frame: Frame) -> Answer:
        """Check that the first frame of a connection is a hello with the token."""
        hello = frame.read(Hello) if frame.kind is FrameKind.HELLO else None
        if hello is None or not hmac.compare_digest(hello.token.encode(), self._token):
            self.refused["token"] += 1
            return _refusal(f"{self.role} refused a connection: wrong token")
        if hello.role != self.role:
            self.refused["role"] += 1
            return _refusal(f"{hello.role} was looked for at the address of {self.role}")
        peer.owner, peer.session, peer.trusted = hello.owner, hello.session, True
        self._strangers.pop(peer, None)
        return self.greet(hello)


def _refusal(text: str) -> Reply:
    """Return the answer that raises DockRefused at the client, and ends the connection."""
    return _closing(failure_of(DockRefused(text)))


def _closing(failure: FailureReply) -> Reply:
    return Reply(message=failure, close=True)
