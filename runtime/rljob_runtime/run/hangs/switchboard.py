"""Where all processes of a run answer: knows who was heard when, and asks everybody at once.

In the driver, on a thread of its own. Processes come by themselves (`reporter`), over the dock's wire and
with the run's token.
"""

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.wire.messages import Asked, Pulse
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply
from rljob_runtime.dock.wire.wire_server import DockServer
from rljob_runtime.processes.hangs.reporter import PULSE_SECONDS, ROLE

GRACE_SECONDS = 5.0
"""So much later than everybody's deadline the server's own thread has answered."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Heard:
    """A process that came. heard: when its last word came, unix seconds. gone: when its connection ended,
    None while it stands. report: its last answer, to the question `answered`."""

    process: str
    pid: int
    host: str
    heard: float
    gone: float | None = None
    answered: int = 0
    report: dict[str, Any] | None = None


class Switchboard:
    """Listens from `start` to `stop`; a context manager. host, port: where processes of the run reach it; 0:
    any port."""

    def __init__(self, *, token: str, host: str, port: int = 0) -> None:
        self._server = _Server(token=token, host=host, port=port)
        self._thread = ServerThread(self._server)
        self.address: tuple[str, int] = ("", 0)

    def __enter__(self) -> Self:
        self.address = self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.stop()

    def ask(self, *, seconds: float) -> dict[str, Heard]:
        """Everybody who came, by name. Those who are there are asked; who does not answer within
        `seconds` has no report."""
        return self._server.ask(seconds)


class _Server(DockServer):
    def __init__(self, *, token: str, host: str, port: int) -> None:
        super().__init__(role=ROLE, token=token, host=host, port=port, shared_directory=None)
        self._known: dict[str, Heard] = {}
        self._peers: dict[str, Peer] = {}
        self._parked: dict[str, asyncio.Future[None]] = {}
        self._asked = 0
        self._open: _Question | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self.answer(Pulse, self._pulse)

    async def start(self) -> tuple[str, int]:
        """See DockServer."""
        self._loop = asyncio.get_running_loop()
        return await super().start()

    def ask(self, seconds: float) -> dict[str, Heard]:
        """From any thread but the server's, one question at a time. Where that thread is stuck, nobody has a
        report."""
        assert self._loop is not None, "ask before start"
        with self._lock:
            answered = asyncio.run_coroutine_threadsafe(self._ask(seconds), self._loop)
            try:
                return answered.result(seconds + GRACE_SECONDS)
            except TimeoutError:
                answered.cancel()
                log.warning(
                    "the switchboard's thread did not answer within %g s", seconds + GRACE_SECONDS
                )
                return {
                    name: replace(heard, report=None) for name, heard in list(self._known.items())
                }

    async def _ask(self, seconds: float) -> dict[str, Heard]:
        self._asked += 1
        before = set(self._known)
        there = {name for name, heard in self._known.items() if heard.gone is None}
        self._open = question = _Question(number=self._asked, missing=there)
        for parked in self._parked.values():
            if not parked.done():
                parked.set_result(None)
        if there:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(question.whole.wait(), seconds)
        self._open = None
        return {
            name: replace(heard, report=heard.report if heard.answered == question.number else None)
            for name, heard in self._known.items()
            if name in before or heard.answered == question.number  # not who came just now
        }

    def _pulse(self, peer: Peer, pulse: Pulse, _: memoryview) -> Answer:
        heard = self._hear(peer, pulse)
        if pulse.answers:
            heard.answered, heard.report = pulse.answers, pulse.report
        if unanswered := self._unanswered(peer.owner):
            return Reply(message=Asked(ask=unanswered))
        if self._open is not None:
            self._open.answered(peer.owner)
        return self._park(peer.owner)

    async def _park(self, process: str) -> Reply:
        """Until somebody asks, or it is time for the next pulse."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked[process] = asked
        if not self._unanswered(process):  # the question may be older than this turn of the loop
            await asyncio.wait([asked], timeout=PULSE_SECONDS)
        if self._parked.get(process) is asked:
            del self._parked[process]
        return Reply(message=Asked(ask=self._unanswered(process)))

    def _unanswered(self, process: str) -> int:
        """Number of the open question that the process has not answered, 0 without."""
        question = self._open
        answered = question is None or self._known[process].answered == question.number
        return 0 if question is None or answered else question.number

    def _hear(self, peer: Peer, pulse: Pulse) -> Heard:
        """One that started again, or connected anew, takes the place of the one before."""
        known = self._known.get(peer.owner)
        if known is None or (known.pid, known.host) != (pulse.pid, pulse.host):
            known = Heard(process=peer.owner, pid=pulse.pid, host=pulse.host, heard=0.0)
            self._known[peer.owner] = known
        known.heard, known.gone = time.time(), None
        self._peers[peer.owner] = peer
        return known

    def lost(self, peer: Peer) -> None:
        """See DockServer."""
        if self._peers.get(peer.owner) is not peer:
            return
        del self._peers[peer.owner]
        self._known[peer.owner].gone = time.time()
        if self._open is not None:
            self._open.answered(peer.owner)


@dataclass(slots=True, kw_only=True)
class _Question:
    """missing: who has not answered. whole: set once nobody is missing."""

    number: int
    missing: set[str]
    whole: asyncio.Event = field(default_factory=asyncio.Event)

    def answered(self, process: str) -> None:
        self.missing.discard(process)
        if not self.missing:
            self.whole.set()
