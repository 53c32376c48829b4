"""Where all processes of a run answer: it records when each was last heard, and asks all of them together.

It runs in the driver, on its own thread. Processes connect to it themselves (`reporter`), over the dock's
wire and with the run's token.
"""

import asyncio
import contextlib
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Self

from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.wire.messages import PulseAnswer, PulseRequest
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply
from rljob_runtime.dock.wire.wire_server import DockServer
from rljob_runtime.processes.hangs.reporter import PULSE_SECONDS, ROLE

GRACE_SECONDS = 5.0
"""How much later than the processes' deadline the server's thread must have answered."""

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class KnownProcess:
    """A process that has connected. last_message_s: when its last message came, Unix seconds. gone_s: when
    its connection ended, None while it is open. report: its last answer, to the question `answered`."""

    process: str
    pid: int
    host: str
    last_message_s: float
    gone_s: float | None = None
    answered: int = 0
    report: dict[str, Any] | None = None


class Switchboard:
    """A server that listens while its context is open. host, port: where processes of the run reach it; 0:
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

    def ask(self, *, seconds: float) -> dict[str, KnownProcess]:
        """Return all processes that ever connected, by name. Connected ones are asked. One that does not
        answer within `seconds` has no report."""
        return self._server.ask(seconds)


class _Server(DockServer):
    def __init__(self, *, token: str, host: str, port: int) -> None:
        super().__init__(role=ROLE, token=token, host=host, port=port, shared_directory=None)
        self._known: dict[str, KnownProcess] = {}
        self._peers: dict[str, Peer] = {}
        self._parked: dict[str, asyncio.Future[None]] = {}
        self._num_questions = 0
        self._open: _Question | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self.answer(PulseRequest, self._pulse)

    async def start(self) -> tuple[str, int]:
        """Start the server, as `DockServer.start` does."""
        self._loop = asyncio.get_running_loop()
        return await super().start()

    def ask(self, seconds: float) -> dict[str, KnownProcess]:
        """Ask all processes. May be called from any thread but the server's; questions are asked one after
        the other. If that thread is stuck, no process has a report."""
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
                    name: replace(process, report=None)
                    for name, process in list(self._known.items())
                }

    async def _ask(self, seconds: float) -> dict[str, KnownProcess]:
        self._num_questions += 1
        before = set(self._known)
        connected = {name for name, process in self._known.items() if process.gone_s is None}
        self._open = question = _Question(number=self._num_questions, missing=connected)
        for parked in self._parked.values():
            if not parked.done():
                parked.set_result(None)
        if connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(question.complete.wait(), seconds)
        self._open = None
        return {
            name: replace(
                process, report=process.report if process.answered == question.number else None
            )
            for name, process in self._known.items()
            if name in before or process.answered == question.number  # not new ones
        }

    def _pulse(self, peer: Peer, pulse: PulseRequest, _: memoryview) -> Answer:
        process = self._record_message(peer, pulse)
        if pulse.answers:
            process.answered, process.report = pulse.answers, pulse.report
        if unanswered := self._unanswered(peer.owner):
            return Reply(message=PulseAnswer(ask=unanswered))
        if self._open is not None:
            self._open.mark_answered(peer.owner)
        return self._hold_reply(peer.owner)

    async def _hold_reply(self, process: str) -> Reply:
        """Hold the reply until a question is asked, or it is time for the next pulse."""
        question_asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parked[process] = question_asked
        if not self._unanswered(process):  # a question may have been asked before this call
            await asyncio.wait([question_asked], timeout=PULSE_SECONDS)
        if self._parked.get(process) is question_asked:
            del self._parked[process]
        return Reply(message=PulseAnswer(ask=self._unanswered(process)))

    def _unanswered(self, process: str) -> int:
        """Return the number of the open question if the process has not answered it, else 0."""
        question = self._open
        answered = question is None or self._known[process].answered == question.number
        return 0 if question is None or answered else question.number

    def _record_message(self, peer: Peer, pulse: PulseRequest) -> KnownProcess:
        """Record a message. A process that restarted or reconnected replaces its earlier entry."""
        known = self._known.get(peer.owner)
        if known is None or (known.pid, known.host) != (pulse.pid, pulse.host):
            known = KnownProcess(
                process=peer.owner, pid=pulse.pid, host=pulse.host, last_message_s=0.0
            )
            self._known[peer.owner] = known
        known.last_message_s, known.gone_s = time.time(), None
        self._peers[peer.owner] = peer
        return known

    def peer_lost(self, peer: Peer) -> None:
        """Record the end of a connection, as `DockServer.lost` does."""
        if self._peers.get(peer.owner) is not peer:
            return
        del self._peers[peer.owner]
        self._known[peer.owner].gone_s = time.time()
        if self._open is not None:
            self._open.mark_answered(peer.owner)


@dataclass(slots=True, kw_only=True)
class _Question:
    """A question to all processes. missing: those that have not answered. complete: set once none is
    missing."""

    number: int
    missing: set[str]
    complete: asyncio.Event = field(default_factory=asyncio.Event)

    def mark_answered(self, process: str) -> None:
        """Record that the process has answered, or is gone."""
        self.missing.discard(process)
        if not self.missing:
            self.complete.set()
