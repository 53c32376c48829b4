"""Which ranks are gone, and who does not go on: for waits of collectives that would not hear it themselves.

Called by the reshard's `exchange` and by `sync_group`. Each rank keeps a socket at which its system answers
for as long as the process lives, and where a rank that gives up says why. Who is there at the start is asked
and told later; others could not be told apart from those that are gone.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

import torch.distributed as dist

from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

BACKLOG = 4096
ANSWER_SECONDS = 2.0
"""Of one connection. Also how long nobody may seem to be gone: the sockets of a process that ends close
one after the other."""
AT_ONCE = 32
LOOK_SECONDS = 1.0
"""From one look to the next at those whom a rank waits for."""
SILENT_LOOKS = 3
"""In a row, after which a rank is gone: a busy system may miss one."""
SECRET_BYTES, NUMBER_BYTES, MOST_BYTES = 32, 4, 4096


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank answers. secret: whoever tells it something says it. name: of the rank, for messages."""

    host: str
    port: int
    secret: str
    name: str


Works = SimpleQueue[Callable[[], None] | None]
Share = Callable[[Address], Sequence[Address]]
"""Gives all ranks' addresses for this rank's own; all ranks call it together."""


class Presence:
    """Of a rank among others, which make it together. It lives until it is closed, or as its process does.

    where: what this rank does, in front of what it raises. names: of all ranks. gave_up: whether it has told
    that it does not go on.
    """

    def __init__(self, rank: int, share: Share, *, name: str, where: str) -> None:
        self._rank, self._where, host = rank, where, _own_host()
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        port, secret = self._socket.getsockname()[1], secrets.token_hex(SECRET_BYTES // 2)
        self._addresses = share(Address(host, port, secret, name))
        self.names = [address.name for address in self._addresses]
        self._changed = threading.Condition()
        self._told, self.gave_up, self._closed = "", False, False
        self._works: Works | None = None
        self._last: Future[None] = Future()
        threading.Thread(target=self._listen, name="presence", daemon=True).start()
        others = [rank for rank in range(len(self._addresses)) if rank != self._rank]
        absent = self._silent(self._silent(others))
        self._others = [rank for rank in others if rank not in absent]

    @classmethod
    def of_world(cls, where: str) -> "Presence":
        """Among all ranks of the default group."""
        rank = dist.get_rank()

        def share(own: Address) -> Sequence[Address]:
            addresses = [own] * dist.get_world_size()
            dist.all_gather_object(addresses, own)
            return addresses

        return cls(rank, share, name=f"rank {rank}", where=where)

    def close(self) -> None:
        """Answer no more: to the others, this rank is gone."""
        self._closed = True
        if self._works is not None:
            self._works.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # else the thread's wait would go on
        self._socket.close()

    def await_all(self, pending: Sequence[Pending], ranks: Iterable[int]) -> None:
        """Wait for what is on its way, whose own deadlines hold. ranks: from whom it comes.

        Raises what a wait raises, and WorkerError when one of `ranks` is gone or any rank says that it
        does not go on. The wait itself goes on in a thread then, which keeps its buffers.
        """
        if not pending:
            return
        end = self._begin(pending)
        awaited = [rank for rank in self._others if rank in set(ranks)]
        silent = dict.fromkeys(awaited, 0)
        while not self._ended(end):
            looked, awaited = awaited[:AT_ONCE], awaited[AT_ONCE:] + awaited[:AT_ONCE]
            quiet = self._silent(looked)
            silent |= {rank: silent[rank] + 1 if rank in quiet else 0 for rank in looked}
            gone = [rank for rank, looks in silent.items() if looks >= SILENT_LOOKS]
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
        """All others that this rank does not go on; not after another rank said the same to all."""
        if self._told:
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda rank: self._say(self._addresses[rank], why), self._others))

    def lost(self) -> list[int]:
        """Ranks whose process or host does not answer; after `ANSWER_SECONDS` maybe none."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not (found := self._silent(self._others)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

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

    def _silent(self, ranks: Iterable[int]) -> list[int]:
        ranks = list(ranks)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(_answers, (self._addresses[rank] for rank in ranks)))
        return [rank for rank, answers in zip(ranks, there, strict=True) if not answers]

    def _say(self, address: Address, why: str) -> None:
        said = address.secret.encode() + self._rank.to_bytes(NUMBER_BYTES, "big") + why.encode()
        try:
            with socket.create_connection((address.host, address.port), ANSWER_SECONDS) as link:
                link.sendall(said[:MOST_BYTES])
        except OSError:
            return  # who is gone needs not hear it

    def _listen(self) -> None:
        own = self._addresses[self._rank].secret.encode()
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:  # such as no descriptor left
                if self._closed:
                    return
                time.sleep(LOOK_SECONDS)
                continue
            said = _heard(link)
            if not secrets.compare_digest(said[:SECRET_BYTES], own):
                continue
            rank = int.from_bytes(said[SECRET_BYTES:][:NUMBER_BYTES], "big")
            why = said[SECRET_BYTES + NUMBER_BYTES :].decode(errors="replace")
            with self._changed:
                self._told = self._told or f"{self.names[rank]} gave up: {why}"
                self._changed.notify_all()


def _work_off(works: Works) -> None:
    while (work := works.get()) is not None:
        work()


def _heard(link: socket.socket) -> bytes:
    """All that comes over a connection until it ends, at most for `ANSWER_SECONDS`."""
    said, deadline = b"", time.monotonic() + ANSWER_SECONDS
    with link:
        while len(said) < MOST_BYTES and (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            try:
                more = link.recv(MOST_BYTES)
            except OSError:
                break
            if not more:
                break
            said += more
    return said


def _answers(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _own_host() -> str:
    """The address that the host's name stands for, as gloo has it; where it has none, this machine alone."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
