"""Which ranks are gone, and who does not go on: for waits of collectives that would not hear it themselves.

Called by the reshard's `exchange` and by `sync_group`. Each rank keeps a connection to every other one, which
ends with the other's process or host, and over which a rank that gives up says why. Nobody is connected to
anew: a port whose process has ended may soon be another's. Whom no connection reaches at the start is neither
asked nor told later; it could not be told apart from who is gone.
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

from rljob_runtime.devices.silent_hosts import probe
from rljob_runtime.devices.tcp import listening_host
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

BACKLOG = 4096
ANSWER_SECONDS = 2.0
"""Of one connection. Also how long nobody may seem to be gone: the sockets of a process that ends close
one after the other."""
AT_ONCE = 32
LOOK_SECONDS = 1.0
GONE_SECONDS = 3.0
"""How long a rank is gone before who waits for it gives up: what it sent before may still be on its way."""
SECRET_BYTES, NUMBER_BYTES, MOST_BYTES = 32, 4, 4096


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank answers. secret: whoever tells it something says it. name: of the rank, for messages."""

    host: str
    port: int
    secret: str
    name: str


Works = SimpleQueue[Callable[[], None] | None]
Share = Callable[[str], Sequence[str]]
"""Gives all ranks' texts for this rank's own; all ranks call it together."""


class Presence:
    """Of a rank among others, which make it together. It lives until it is closed, or as its process does.

    where: what this rank does, in front of what it raises. names: of all ranks. gave_up: whether it has told
    that it does not go on.
    """

    def __init__(self, rank: int, share: Share, *, name: str, where: str) -> None:
        self._rank, self._where, host = rank, where, listening_host()
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        self._socket.settimeout(ANSWER_SECONDS)
        port, secret = self._socket.getsockname()[1], secrets.token_hex(SECRET_BYTES // 2)
        own = Address(host, port, secret, name)
        self._addresses = [Address(**json.loads(given)) for given in share(json.dumps(asdict(own)))]
        self.names = [address.name for address in self._addresses]
        self._changed = threading.Condition()
        self._told, self.gave_up, self._closed = "", False, False
        self._gone: dict[int, float] = {}
        self._gave_up: set[int] = set()
        self._works: Works | None = None
        self._last: Future[None] = Future()
        self._links = self._connected()
        threading.Thread(target=self._listen, name="presence", daemon=True).start()

    def close(self) -> None:
        """Answer no more: to the others, this rank is gone."""
        self._closed = True
        self._last = Future()  # an error has the frames of those that waited, and what they hold
        if self._works is not None:
            self._works.put(None)
        for each in (
            *self._links.values(),
            self._socket,
        ):  # which wakes the thread, that closes them
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def await_all(self, pending: Sequence[Pending], ranks: Iterable[int]) -> None:
        """Wait for what is on its way, whose own deadlines hold. ranks: from whom it comes.

        Raises what a wait raises, and WorkerError when one of `ranks` is gone or any rank says that it
        does not go on. The wait itself goes on in a thread then, which keeps its buffers.
        """
        if not pending:
            return
        end = self._begin(pending)
        awaited = set(ranks)
        while not self._ended(end):
            until = time.monotonic() - GONE_SECONDS
            with self._changed:
                gone = [r for r in self._lost() if r in awaited and self._gone[r] < until]
            if gone and not end.done():
                names = "; ".join(f"{self.names[rank]} is gone" for rank in gone)
                raise WorkerError(f"{self._where}: {names}")
        end.result()

    def give_up(self, error: BaseException) -> str:
        """This rank does not go on, which all others hear, with the error and who is gone, where it says
        neither; this text. Once."""
        text = str(error)
        if self.gave_up:
            return text
        self.gave_up = True
        if isinstance(error, RuntimeError | WorkerError):
            names = [f"{self.names[rank]} is gone" for rank in self.lost()]
            text = "".join(f"{name}; " for name in names if name not in text) + text
            self.tell(text)
        else:
            self.tell(f"{type(error).__name__}: {text}")
        return text

    def tell(self, why: str) -> None:
        """All others that this rank does not go on; also after another one did, so that nobody takes it for
        gone when it leaves."""
        own = self._rank.to_bytes(NUMBER_BYTES, "big") + why.encode()
        for rank, link in self._links.items():
            with suppress(OSError):  # who is gone needs not hear it
                link.sendall((self._addresses[rank].secret.encode() + own)[:MOST_BYTES])
                link.shutdown(socket.SHUT_WR)

    def lost(self) -> list[int]:
        """Ranks whose process or host is gone, without those that gave up before; after `ANSWER_SECONDS`
        maybe none."""
        with self._changed:
            self._changed.wait_for(self._lost, ANSWER_SECONDS)
            return self._lost()

    def _lost(self) -> list[int]:
        return sorted(self._gone.keys() - self._gave_up)

    def _begin(self, pending: Sequence[Pending]) -> "Future[None]":
        """Waits in a thread: a wait cannot be ended from outside. No pool's, which would be awaited when
        the process ends; always the same, as torch keeps a record of each that ever waited; another where
        the last wait has not ended. Buffers are left before the end is known, as their memory is counted."""
        end: Future[None] = Future()
        left = list(pending)

        def wait() -> None:
            try:
                while left:
                    left.pop(0).wait()
                end.set_result(None)
            except Exception as error:
                end.set_exception(error)
            with self._changed:
                self._changed.notify_all()

        if self._works is None or not self._last.done():
            if self._works is not None:
                self._works.put(None)
            self._works = SimpleQueue()
            threading.Thread(
                target=_work_off, args=(self._works,), name="collective wait", daemon=True
            ).start()
        self._works.put(wait)
        self._last = end
        return end

    def _ended(self, end: "Future[None]") -> bool:
        """After at most `LOOK_SECONDS`. Raises WorkerError when a rank said that it does not go on."""
        with self._changed:
            self._changed.wait_for(lambda: end.done() or self._told, LOOK_SECONDS)
            if self._told and not end.done():
                raise WorkerError(f"{self._where}: {self._told}")
        return end.done()

    def _connected(self) -> dict[int, socket.socket]:
        """A connection to each other rank that can be reached, by rank."""
        others = [rank for rank in range(len(self._addresses)) if rank != self._rank]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            links = pool.map(_connection, (self._addresses[rank] for rank in others))
            return {
                rank: link for rank, link in zip(others, links, strict=True) if link is not None
            }

    def _listen(self) -> None:
        """Notes whose connection ends, and what others say, until this one is closed."""
        said: dict[socket.socket, bytes] = {}
        ranks = {link: rank for rank, link in self._links.items()}
        with selectors.DefaultSelector() as waiting:
            for own in (self._socket, *ranks):
                waiting.register(own, selectors.EVENT_READ)
            while not self._closed:
                ready = [key.fileobj for key, _ in waiting.select()]
                for one in sorted(ready, key=ranks.__contains__):  # what is said, then who is gone
                    if not isinstance(one, socket.socket):
                        continue
                    if one is self._socket:
                        if (link := self._accepted()) is not None:
                            said[link] = b""
                            waiting.register(link, selectors.EVENT_READ)
                        continue
                    more, ended = _read(one)
                    if one in said:
                        said[one] += more
                        if not ended and len(said[one]) < MOST_BYTES:
                            continue
                        self._hear(said.pop(one))
                    elif not ended:  # nobody speaks on a connection to it
                        continue
                    else:
                        self._note_gone(ranks[one])
                    waiting.unregister(one)
                    one.close()
            for own in (self._socket, *said, *ranks):
                own.close()

    def _accepted(self) -> socket.socket | None:
        try:
            return self._socket.accept()[0]
        except OSError:  # such as no descriptor left
            if not self._closed:
                time.sleep(LOOK_SECONDS)
            return None

    def _note_gone(self, rank: int) -> None:
        with self._changed:
            self._gone[rank] = time.monotonic()
            self._changed.notify_all()

    def _hear(self, said: bytes) -> None:
        """What one said that may have given up; a stranger's words are none."""
        own = self._addresses[self._rank].secret.encode()
        if not secrets.compare_digest(said[:SECRET_BYTES], own):
            return
        rank = int.from_bytes(said[SECRET_BYTES:][:NUMBER_BYTES], "big")
        why = said[SECRET_BYTES + NUMBER_BYTES :].decode(errors="replace")
        with self._changed:
            self._gave_up.add(rank)
            self._told = self._told or f"{self.names[rank]} gave up: {why}"
            self._changed.notify_all()


def _work_off(works: Works) -> None:
    while (work := works.get()) is not None:
        work()
        del work  # the next may be long in coming, and this one holds its error


def _read(link: socket.socket) -> tuple[bytes, bool]:
    """What has come over a connection, and whether it has ended."""
    said = b""
    link.setblocking(False)
    try:
        while len(said) < MOST_BYTES and (more := link.recv(MOST_BYTES)):
            said += more
        return said, len(said) < MOST_BYTES
    except BlockingIOError:
        return said, False
    except OSError:
        return said, True
    finally:
        link.settimeout(ANSWER_SECONDS)


def _connection(address: Address) -> socket.socket | None:
    """To a rank, which its system asks for life while nothing is said; None where it is not reached."""
    try:
        link = socket.create_connection((address.host, address.port), ANSWER_SECONDS)
        probe(link)
    except OSError:
        return None
    return link
