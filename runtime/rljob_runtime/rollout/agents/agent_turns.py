"""Samples that agents play: requests become turns of the running batch, and a session's end its sample's.

`AgentDesk` is made with a device's states, `AgentTurns` for each call of `generate`, in the place of `Turns`.
Nothing is drawn for a sample before its agent has asked.
"""

import json
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rljob_api.spec.agent import Agent
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.errors import WorkerError
from rljob_runtime.rollout.agents.endpoint import Endpoint
from rljob_runtime.rollout.agents.session import AgentTurn, Session, SessionLimits
from rljob_runtime.rollout.rollout_engine import AgentTally, Generated, Idle, PromptGroup
from rljob_runtime.task.agents.agent_pool import AgentPool, Played
from rljob_runtime.task.agents.chat_request import ChatRequest
from rljob_runtime.task.tokenizer import Tokenizer

NOTHING = ChatRequest(
    messages=[], tools=[], most=1, model="", stream=False, usage=False, retry=False
)
"""What a session asks that ends without an answer: its sample has a token, with the rest of nothing."""


class AgentDesk:
    """The endpoint and the agents of one device. Raises ConfigError where the agent does not start."""

    def __init__(
        self, agent: Agent, *, base_dir: Path, tokenizer: Tokenizer, limits: SessionLimits
    ) -> None:
        self.tokenizer, self.limits = tokenizer, limits
        self.idle, self.tally = Idle(), AgentTally()
        self._pool = AgentPool(agent, base_dir)
        self._endpoint = Endpoint(seconds=agent.timeout_seconds)
        self._server = ServerThread(self._endpoint)
        host, port = self._server.start()
        self._url = f"http://{host}:{port}/v1"
        self._keys: dict[str, str] = {}

    def take_tally(self) -> AgentTally:
        """Of the sessions since the last call."""
        tally, self.tally = self.tally, AgentTally()
        return tally

    def clear(self) -> None:
        """End the sessions of a call that ended early."""
        for uid in [*self._keys]:
            self.over(uid)

    def play(self, session: Session, said: Callable[[AgentTurn | Played], None]) -> None:
        """Let a session begin, once there is a process for it; `said` gets each turn that it asks for and how
        it ended, in other threads."""
        key = self._endpoint.open(session, said)
        self._keys[session.uid] = key

        def begin() -> dict[str, Any] | None:
            if self._keys.get(session.uid) != key:
                return None
            task = json.loads(session.group.task)
            return {"task": task, "base_url": self._url, "api_key": key}

        self._pool.play(begin, said)

    def answer(self, session: Session, turn: AgentTurn, made: Generated) -> None:
        """A turn was drawn: its request is answered."""
        self._endpoint.answer(self._keys[session.uid], turn, made)

    def over(self, uid: str) -> None:
        """The session of a sample asks no more."""
        self._endpoint.close(self._keys.pop(uid))

    @property
    def most_seconds(self) -> float:
        """By when a session that is played has asked or ended for certain."""
        return self._pool.most_seconds

    def close(self) -> None:
        """End all sessions, their processes and the endpoint."""
        self.clear()
        self._pool.close()
        self._server.stop()


@dataclass(slots=True)
class AgentTurns:
    """The sessions of one call of `generate`, one a sample. As `Turns` to engines."""

    desk: AgentDesk
    _sessions: dict[str, Session] = field(default_factory=dict)
    _asked: dict[str, tuple[Session, AgentTurn]] = field(default_factory=dict)
    _said: "queue.SimpleQueue[tuple[Session, AgentTurn | Played]]" = field(
        default_factory=queue.SimpleQueue
    )

    @property
    def pending(self) -> int:
        """Sessions that go on."""
        return len(self._sessions)

    def begin(self, groups: Sequence[PromptGroup]) -> list[PromptGroup]:
        """See Turns: every sample waits for its agent's first request."""
        self.desk.clear()
        for group in groups:
            for uid, seed in zip(group.uids, group.seeds, strict=True):
                self._begin(replace(group, uids=[uid], seeds=[seed]))
        return []

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """See Partner. None: an answer ends with an end token or a stop string."""
        return [False] * len(tokens)

    def take(self, ended: Sequence[tuple[PromptGroup, int, Generated]]) -> list[Generated]:
        """See Turns: answers go to who asked for them."""
        found = []
        for _, _, made in ended:
            session, turn = self._asked.pop(made.uid)
            if session.uid not in self._sessions:
                continue
            if session.played is None:
                self.desk.answer(session, turn, made)
            else:  # it ended before its first answer
                session.answer(turn, made)
                found.append(self._end(session))
        return found

    def answered(self, *, wait: bool) -> tuple[list[PromptGroup], list[Generated]]:
        """See Turns: requests that came, and sessions that ended."""
        going_on: list[PromptGroup] = []
        ended: list[Generated] = []
        for session, what in self._arrived(wait=wait):
            if session.uid not in self._sessions or session.played is not None:
                continue
            if isinstance(what, AgentTurn):
                going_on.append(self._ask(session, what))
                continue
            self.desk.over(session.uid)
            session.played = what
            if session.last is not None:
                ended.append(self._end(session))
            elif not any(other is session for other, _ in self._asked.values()):
                turn = AgentTurn(
                    number=len(session.turns),
                    request=NOTHING,
                    behind=None,
                    put=[],
                    seed=session.group.seeds[0],
                )
                going_on.append(self._ask(session, turn))
        return going_on, ended

    def _begin(self, group: PromptGroup) -> None:
        session = Session(group=group, tokenizer=self.desk.tokenizer, limits=self.desk.limits)
        self._sessions[session.uid] = session
        self.desk.play(session, lambda what: self._said.put((session, what)))

    def _ask(self, session: Session, turn: AgentTurn) -> PromptGroup:
        group = session.group_of(turn)
        self._asked[group.uids[0]] = session, turn
        return group

    def _end(self, session: Session) -> Generated:
        del self._sessions[session.uid]
        self.desk.tally.requests += len(session.turns)
        self.desk.tally.left_out += session.left_out
        return session.whole()

    def _arrived(self, *, wait: bool) -> list[tuple[Session, AgentTurn | Played]]:
        found = []
        if wait:
            most, started = self.desk.most_seconds, time.monotonic()
            try:
                found.append(self._said.get(timeout=most))
            except queue.Empty:
                raise WorkerError(
                    f"none of {len(self._sessions)} sessions of the agent (spec.rollout.agent) asked or "
                    f"ended in {most:.0f} s"
                ) from None
            self.desk.idle.add(time.monotonic() - started)
        while not self._said.empty():
            found.append(self._said.get_nowait())
        return found
