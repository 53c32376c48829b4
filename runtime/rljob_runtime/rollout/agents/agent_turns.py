"""Samples that agents play: requests become turns of the running batch, and the end of a session ends its
sample.

`AgentDesk` is created with a device's states; `AgentTurns` for each call of `generate`, in place of `Turns`.
Nothing is generated for a sample before its agent's first request.
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
from rljob_runtime.rollout.agents.session import AgentSession, AgentTurn, SessionLimits
from rljob_runtime.rollout.rollout_engine import AgentTally, Generated, Idle, PromptGroup
from rljob_runtime.task.agents.agent_pool import AgentPool, Played
from rljob_runtime.task.agents.chat_request import ChatRequest
from rljob_runtime.task.tokenizer import Tokenizer

EMPTY_REQUEST = ChatRequest(
    messages=[], tools=[], most=1, model="", stream=False, usage=False, retry=False
)
"""The request of a session that ends without an answer; its sample then has one token."""


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
        """Return the tally of the sessions since the last call."""
        tally, self.tally = self.tally, AgentTally()
        return tally

    def clear(self) -> None:
        """End the sessions of a call that ended early."""
        for uid in [*self._keys]:
            self.end_session(uid)

    def play(self, session: AgentSession, on_event: Callable[[AgentTurn | Played], None]) -> None:
        """Start a session, once there is a process for it. `on_event` is called in other threads with each
        turn that it requests, and with its end."""
        key = self._endpoint.open(session, on_event)
        self._keys[session.uid] = key

        def begin() -> dict[str, Any] | None:
            if self._keys.get(session.uid) != key:
                return None
            task = json.loads(session.group.task)
            return {"task": task, "base_url": self._url, "api_key": key}

        self._pool.play(begin, on_event)

    def answer(self, session: AgentSession, turn: AgentTurn, generated: Generated) -> None:
        """Answer the request of a generated turn."""
        self._endpoint.answer(self._keys[session.uid], turn, generated)

    def end_session(self, uid: str) -> None:
        """Refuse further requests of the session of a sample."""
        self._endpoint.close(self._keys.pop(uid))

    @property
    def most_seconds(self) -> float:
        """The longest time until a running session sends a request or ends."""
        return self._pool.most_seconds

    def close(self) -> None:
        """End all sessions, their processes and the endpoint."""
        self.clear()
        self._pool.close()
        self._server.stop()


@dataclass(slots=True)
class AgentTurns:
    """The sessions of one call of `generate`, one for each sample. Engines use it like `Turns`."""

    desk: AgentDesk
    _sessions: dict[str, AgentSession] = field(default_factory=dict)
    _requested: dict[str, tuple[AgentSession, AgentTurn]] = field(default_factory=dict)
    _events: "queue.SimpleQueue[tuple[AgentSession, AgentTurn | Played]]" = field(
        default_factory=queue.SimpleQueue
    )

    @property
    def pending(self) -> int:
        """The number of running sessions."""
        return len(self._sessions)

    def begin(self, groups: Sequence[PromptGroup]) -> list[PromptGroup]:
        """Start all sessions: every sample waits for its agent's first request. See `Turns.begin`."""
        self.desk.clear()
        for group in groups:
            for uid, seed in zip(group.uids, group.seeds, strict=True):
                self._begin(replace(group, uids=[uid], seeds=[seed]))
        return []

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Return False for each row: an answer ends with an end token or a stop string. See
        `Partner.may_end`."""
        return [False] * len(tokens)

    def take(self, ended: Sequence[tuple[PromptGroup, int, Generated]]) -> list[Generated]:
        """Return answers to the sessions that requested them. See `Turns.take`."""
        samples = []
        for _, _, generated in ended:
            session, turn = self._requested.pop(generated.uid)
            if session.uid not in self._sessions:
                continue
            if session.played is None:
                self.desk.answer(session, turn, generated)
            else:  # it ended before its first answer
                session.answer(turn, generated)
                samples.append(self._end(session))
        return samples

    def answered(self, *, wait: bool) -> tuple[list[PromptGroup], list[Generated]]:
        """Return new requests, and the samples of sessions that ended. See `Turns.answered`."""
        continued: list[PromptGroup] = []
        ended: list[Generated] = []
        for session, event in self._new_events(wait=wait):
            if session.uid not in self._sessions or session.played is not None:
                continue
            if isinstance(event, AgentTurn):
                continued.append(self._request_turn(session, event))
                continue
            self.desk.end_session(session.uid)
            session.played = event
            if session.last is not None:
                ended.append(self._end(session))
            elif not any(other is session for other, _ in self._requested.values()):
                turn = AgentTurn(
                    number=len(session.turns),
                    request=EMPTY_REQUEST,
                    parent=None,
                    inserted=[],
                    seed=session.group.seeds[0],
                )
                continued.append(self._request_turn(session, turn))
        return continued, ended

    def _begin(self, group: PromptGroup) -> None:
        session = AgentSession(group=group, tokenizer=self.desk.tokenizer, limits=self.desk.limits)
        self._sessions[session.uid] = session
        self.desk.play(session, lambda event: self._events.put((session, event)))

    def _request_turn(self, session: AgentSession, turn: AgentTurn) -> PromptGroup:
        group = session.group_of(turn)
        self._requested[group.uids[0]] = session, turn
        return group

    def _end(self, session: AgentSession) -> Generated:
        del self._sessions[session.uid]
        self.desk.tally.requests += len(session.turns)
        self.desk.tally.left_out += session.left_out
        return session.to_generated()

    def _new_events(self, *, wait: bool) -> list[tuple[AgentSession, AgentTurn | Played]]:
        events = []
        if wait:
            timeout, started = self.desk.most_seconds, time.monotonic()
            try:
                events.append(self._events.get(timeout=timeout))
            except queue.Empty:
                raise WorkerError(
                    f"none of {len(self._sessions)} sessions of the agent (spec.rollout.agent) asked or "
                    f"ended in {timeout:.0f} s"
                ) from None
            self.desk.idle.add(time.monotonic() - started)
        while not self._events.empty():
            events.append(self._events.get_nowait())
        return events
