"""Detect ranks that are gone or give up, for waits of collectives that would not notice it.

Called by the reshard's `exchange` and by `sync_group`. Each rank keeps a connection to every other rank. It
ends with the other's process or host, and a rank that gives up sends its reason over it. Connections are
never reopened: another process may soon listen at the port of an ended one. A rank that cannot be reached at
the start is ignored later, as it cannot be distinguished from a lost one.
"""

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from queue import SimpleQueue

from rljob_runtime.devices.silent_hosts import enable_keepalive
from rljob_runtime.devices.tcp import listening_host
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

BACKLOG = 4096
ANSWER_SECONDS = 2.0
"""Timeout of one connection. Also how long `lost` waits for the first lost rank: sockets of an ending process
close one after the other."""
CONNECT_THREADS = 32
POLL_SECONDS = 1.0
GONE_SECONDS = 3.0
"""How long a rank is gone before waits for it end: its earlier messages may still be on their way."""
SECRET_BYTES, NUMBER_BYTES, MOST_BYTES = 32, 4, 4096


@dataclass(frozen=True, slots=True)
class PresenceAddress:
    """Where a rank listens. secret: required in messages to it. name: of the rank, for messages."""

    host: str
    port: int
    secret: str
    name: str


WaitQueue = SimpleQueue[Callable[[], None] | None]
Share = Callable[[str], Sequence[str]]
"""Exchanges texts: takes this rank's text and returns all ranks' texts; all ranks call it together."""


class Presence:
    """Connections of one rank to all others, which create theirs together. Open until `close` or the process'
    end.

    activity: of this rank, a prefix of its errors. names: of all ranks. gave_up: whether this rank has
    announced that it gives up.
    """

    def __init__(self, rank: int, share: Share, *, name: str, activity: str) -> None:
        self._rank, self._activity, host = rank, activity, listening_host()
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        self._socket.settimeout(ANSWER_SECONDS)
        port, secret = self._socket.getsockname()[1], secrets.token_hex(SECRET_BYTES // 2)
        local_address = PresenceAddress(host, port, secret, name)
        self._addresses = [
            PresenceAddress(**json.loads(text)) for text in share(json.dumps(asdict(local_address)))
        ]
        self.names = [address.name for address in self._addresses]
        self._changed = threading.Condition()
        self._failure_text, self.gave_up, self._closed = "", False, False
        self._gone_since: dict[int, float] = {}
        self._failed_ranks: set[int] = set()
        self._waits: WaitQueue | None = None
        self._last_wait: Future[None] = Future()
        self._links = self._connect_all()
        threading.Thread(target=self._listen, name="presence", daemon=True).start()

    def close(self) -> None:
        """Close all connections: for the others, this rank is gone."""
        self._closed = True
        # An error references the frames of its waiters and their objects.
        self._last_wait = Future()
        if self._waits is not None:
            self._waits.put(None)
        # This wakes the thread, which closes the sockets.
        for connection in (*self._links.values(), self._socket):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def await_all(self, pending: Sequence[Pending], ranks: Iterable[int]) -> None:
        """Wait for pending results, whose own deadlines apply. ranks: their senders.

        Raises errors of the waits, and WorkerError when one of `ranks` is gone or any rank gives up. The wait
        itself then continues in a thread, which keeps its buffers alive.
        """
        if not pending:
            return
        end = self._begin(pending)
        awaited = set(ranks)
        while not self._ended(end):
            until = time.monotonic() - GONE_SECONDS
            with self._changed:
                gone = [
                    r for r in self._lost_ranks() if r in awaited and self._gone_since[r] < until
                ]
            if gone and not end.done():
                names = "; ".join(f"{self.names[rank]} is gone" for rank in gone)
                raise WorkerError(f"{self._activity}: {names}")
        end.result()

    def give_up(self, error: BaseException) -> str:
        """Announce once that this rank gives up, and return the text: the error, and the lost ranks that it
        does not name."""
        text = str(error)
        if self.gave_up:
            return text
        self.gave_up = True
        if isinstance(error, RuntimeError | WorkerError):
            gone = [f"{self.names[rank]} is gone" for rank in self.lost()]
            text = "".join(f"{name}; " for name in gone if name not in text) + text
            self.announce_failure(text)
        else:
            self.announce_failure(f"{type(error).__name__}: {text}")
        return text

    def announce_failure(self, reason: str) -> None:
        """Send all others the reason why this rank gives up. Called also after another rank gave up, so that
        this rank does not count as lost when it leaves."""
        message = self._rank.to_bytes(NUMBER_BYTES, "big") + reason.encode()
        for rank, link in self._links.items():
            with suppress(OSError):  # a lost rank needs no message
                link.sendall((self._addresses[rank].secret.encode() + message)[:MOST_BYTES])
                link.shutdown(socket.SHUT_WR)

    def lost(self) -> list[int]:
        """Return ranks whose process or host is gone, without those that gave up; waits up to
        `ANSWER_SECONDS` for the first one, and may return none."""
        with self._changed:
            self._changed.wait_for(self._lost_ranks, ANSWER_SECONDS)
            return self._lost_ranks()

    def _lost_ranks(self) -> list[int]:
        return sorted(self._gone_since.keys() - self._failed_ranks)

    def _begin(self, pending: Sequence[Pending]) -> "Future[None]":
        """Wait in a thread, as a wait cannot be interrupted. It is no thread of a pool, which the process
        would join at its end. It is reused, as torch keeps a record of each thread that ever waited, and
        replaced where the last wait has not ended. Buffers are released before the future is set, as their
        memory is counted."""
        end: Future[None] = Future()
        remaining = list(pending)

        def wait() -> None:
            try:
                while remaining:
                    remaining.pop(0).wait()
                end.set_result(None)
            except Exception as error:
                end.set_exception(error)
            with self._changed:
                self._changed.notify_all()

        if self._waits is None or not self._last_wait.done():
            if self._waits is not None:
                self._waits.put(None)
            self._waits = SimpleQueue()
            threading.Thread(
                target=_run_waits, args=(self._waits,), name="collective wait", daemon=True
            ).start()
        self._waits.put(wait)
        self._last_wait = end
        return end

    def _ended(self, end: "Future[None]") -> bool:
        """Wait up to `POLL_SECONDS` and return whether the wait has ended. Raises WorkerError when a rank
        gave up."""
        with self._changed:
            self._changed.wait_for(lambda: end.done() or self._failure_text, POLL_SECONDS)
            if self._failure_text and not end.done():
                raise WorkerError(f"{self._activity}: {self._failure_text}")
        return end.done()

    def _connect_all(self) -> dict[int, socket.socket]:
        """Connect to all other ranks; return the connections of reachable ones, by rank."""
        others = [rank for rank in range(len(self._addresses)) if rank != self._rank]
        with ThreadPoolExecutor(CONNECT_THREADS) as pool:
            links = pool.map(_connect, (self._addresses[rank] for rank in others))
            return {
                rank: link for rank, link in zip(others, links, strict=True) if link is not None
            }

    def _listen(self) -> None:
        """Record ended connections and received messages until this rank is closed."""
        messages: dict[socket.socket, bytes] = {}
        ranks = {link: rank for rank, link in self._links.items()}
        with selectors.DefaultSelector() as selector:
            for connection in (self._socket, *ranks):
                selector.register(connection, selectors.EVENT_READ)
            while not self._closed:
                ready = [key.fileobj for key, _ in selector.select()]
                # Messages come first, then lost ranks.
                for readable in sorted(ready, key=ranks.__contains__):
                    if not isinstance(readable, socket.socket):
                        continue
                    if readable is self._socket:
                        if (link := self._accept()) is not None:
                            messages[link] = b""
                            selector.register(link, selectors.EVENT_READ)
                        continue
                    data, ended = _read(readable)
                    if readable in messages:
                        messages[readable] += data
                        if not ended and len(messages[readable]) < MOST_BYTES:
                            continue
                        self._receive(messages.pop(readable))
                    elif not ended:  # no message arrives on a connection that this rank opened
                        continue
                    else:
                        self._note_gone(ranks[readable])
                    selector.unregister(readable)
                    readable.close()
            for connection in (self._socket, *messages, *ranks):
                connection.close()

    def _accept(self) -> socket.socket | None:
        try:
            return self._socket.accept()[0]
        except OSError:  # for example, without free descriptors
            if not self._closed:
                time.sleep(POLL_SECONDS)
            return None

    def _note_gone(self, rank: int) -> None:
        with self._changed:
            self._gone_since[rank] = time.monotonic()
            self._changed.notify_all()

    def _receive(self, message: bytes) -> None:
        """Record a message of a rank that gave up; ignore messages without the secret."""
        secret = self._addresses[self._rank].secret.encode()
        if not secrets.compare_digest(message[:SECRET_BYTES], secret):
            return
        rank = int.from_bytes(message[SECRET_BYTES:][:NUMBER_BYTES], "big")
        reason = message[SECRET_BYTES + NUMBER_BYTES :].decode(errors="replace")
        with self._changed:
            self._failed_ranks.add(rank)
            self._failure_text = self._failure_text or f"{self.names[rank]} gave up: {reason}"
            self._changed.notify_all()


def _run_waits(waits: WaitQueue) -> None:
    while (wait := waits.get()) is not None:
        wait()
        del wait  # the next may arrive much later, and this one references its error


def _read(link: socket.socket) -> tuple[bytes, bool]:
    """Return the data that has arrived on a connection, and whether it has ended."""
    data = b""
    link.setblocking(False)
    try:
        while len(data) < MOST_BYTES and (chunk := link.recv(MOST_BYTES)):
            data += chunk
        return data, len(data) < MOST_BYTES
    except BlockingIOError:
        return data, False
    except OSError:
        return data, True
    finally:
        link.settimeout(ANSWER_SECONDS)


def _connect(address: PresenceAddress) -> socket.socket | None:
    """Connect to a rank, with TCP keepalive; return None where it cannot be reached."""
    try:
        link = socket.create_connection((address.host, address.port), ANSWER_SECONDS)
        enable_keepalive(link)
    except OSError:
        return None
    return link
