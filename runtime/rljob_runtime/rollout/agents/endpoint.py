"""The OpenAI-compatible endpoint of a device that generates: POST /v1/chat/completions, GET /v1/models.

Listens on the loopback address only, since agents run on the same host. A session's key identifies the sample
of a request; it is random and expires with the session. Requests wait here until the engine, in another
thread, has answered. Used by `agent_turns`.
"""

import asyncio
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rljob_api.spec.json_text import parse_json
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.agents.session import AgentSession, AgentTurn
from rljob_runtime.rollout.rollout_engine import Generated
from rljob_runtime.task.agents.agent_child import HOST
from rljob_runtime.task.agents.chat_request import ChatRequest, RequestRefused, read_request, sent

MAX_BODY_BYTES = 16 << 20
BODY_SECONDS = 30.0
STOP_SECONDS = 2.0
RETRY_HEADER = "x-stainless-retry-count"
"""Header of OpenAI's own clients: 0 at first, more when they retry."""
MODEL = "policy"


@dataclass(slots=True, kw_only=True)
class _OpenSession:
    """An open session. ask: passes a new turn to the engine. waiting: futures by the turn's number."""

    session: AgentSession
    ask: Callable[[AgentTurn], None]
    waiting: dict[int, asyncio.Future[bool]] = field(default_factory=dict)


class Endpoint:
    """A server for a `ServerThread`. seconds: the longest wait of a request."""

    role = "agents"

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._open_sessions: dict[str, _OpenSession] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> tuple[str, int]:
        """Listen on a free port; return its address."""
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_SECONDS)
        listening = socket.create_server((HOST, 0))
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        host, port = listening.getsockname()
        return host, port

    async def stop(self) -> None:
        """Close all connections to the agents."""
        await self._runner.cleanup()

    def open(self, session: AgentSession, ask: Callable[[AgentTurn], None]) -> str:
        """Accept requests of a session; return its key. ask: called in the server's thread with each turn to
        generate. It may be called from any thread, like the methods below."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._open_sessions[key] = _OpenSession(session=session, ask=ask)
        return key

    def answer(self, key: str, turn: AgentTurn, generated: Generated) -> None:
        """Answer a turn of a session with its generated tokens."""
        with self._lock:
            open_session = self._open_sessions.get(key)
            if open_session is not None:
                open_session.session.answer(turn, generated)
                self._resolve_later(open_session, turn.number, answered=True)

    def close(self, key: str) -> None:
        """End a session: its requests are refused."""
        with self._lock:
            open_session = self._open_sessions.pop(key, None)
            for number in [*open_session.waiting] if open_session is not None else []:
                assert open_session is not None
                self._resolve_later(open_session, number, answered=False)

    def _resolve_later(self, open_session: _OpenSession, number: int, *, answered: bool) -> None:
        future, loop = open_session.waiting.get(number), self._loop
        if future is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future, answered)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            open_session = self._open_session(request)
            chat_request = read_request(
                await _body(request), retry=request.headers.get(RETRY_HEADER, "0") != "0"
            )
            turn = await self._answered(open_session, chat_request)
        except RequestRefused as refused:
            return web.json_response(refused.body, status=refused.status)
        except ConfigError as error:  # of the chat template
            return web.json_response(RequestRefused(str(error)).body, status=400)
        if chat_request.stream:
            return await _streamed(request, turn, chat_request)
        return web.json_response(_completion(turn, chat_request))

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._open_session(request)
        except RequestRefused as refused:
            return web.json_response(refused.body, status=refused.status)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rljob"}
        return web.json_response({"object": "list", "data": [model]})

    def _open_session(self, request: web.Request) -> _OpenSession:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        open_session = self._open_sessions.get(key.strip()) if kind.lower() == "bearer" else None
        if open_session is None:
            raise RequestRefused(
                "no session has this key; it is the OPENAI_API_KEY of a session, and ends with it",
                code="invalid_api_key",
                status=401,
            )
        return open_session

    async def _answered(self, open_session: _OpenSession, chat_request: ChatRequest) -> AgentTurn:
        with self._lock:
            turn, is_new = open_session.session.ask(chat_request)
            if is_new:
                open_session.waiting[turn.number] = asyncio.get_running_loop().create_future()
                open_session.ask(turn)
            future = open_session.waiting[turn.number]
        try:  # a client that disconnects must not cancel the answer of one that retries
            answered = await asyncio.wait_for(asyncio.shield(future), self._seconds)
        except TimeoutError:
            answered = False
        if not answered:
            raise RequestRefused("this session is over", code="session_over")
        return turn


def _resolve(future: asyncio.Future[bool], answered: bool) -> None:
    if not future.done():
        future.set_result(answered)


async def _body(request: web.Request) -> Any:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return parse_json(await request.read())
    except TimeoutError as error:
        raise RequestRefused(f"the body was not here in {BODY_SECONDS:g} s", status=408) from error
    except ValueError as error:
        raise RequestRefused(f"the body is no JSON: {error}") from error


def _completion(turn: AgentTurn, chat_request: ChatRequest) -> dict[str, Any]:
    message, finish = _message_of(turn)
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    return _head(turn, chat_request, "chat.completion") | {
        "choices": [choice],
        "usage": _usage(turn),
    }


async def _streamed(
    request: web.Request, turn: AgentTurn, chat_request: ChatRequest
) -> web.StreamResponse:
    """Send all of the answer in one event, since it is complete."""
    message, finish = _message_of(turn)
    if calls := message.get("tool_calls"):
        message = message | {"tool_calls": [call | {"index": n} for n, call in enumerate(calls)]}
    head = _head(turn, chat_request, "chat.completion.chunk")
    events: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in ((message, None), ({}, finish))
    ]
    if chat_request.usage:
        events.append(head | {"choices": [], "usage": _usage(turn)})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for text in (*map(json.dumps, events), "[DONE]"):
        await response.write(f"data: {text}\n\n".encode())
    await response.write_eof()
    return response


def _message_of(turn: AgentTurn) -> tuple[dict[str, Any], str]:
    assert turn.generated is not None and turn.message is not None, "it is answered"
    finish = "stop" if turn.generated.finish == "stop" else "length"
    return sent(turn.message), "tool_calls" if "tool_calls" in turn.message else finish


def _head(turn: AgentTurn, chat_request: ChatRequest, object_kind: str) -> dict[str, Any]:
    assert turn.generated is not None, "it is answered"
    return {
        "id": f"chatcmpl-{turn.generated.uid.replace(' ', '-')}",
        "object": object_kind,
        "created": int(time.time()),
        "model": chat_request.model,
        "system_fingerprint": f"weights-{turn.generated.version}",
    }


def _usage(turn: AgentTurn) -> dict[str, int]:
    assert turn.generated is not None, "it is answered"
    prompt_tokens, completion_tokens = 1 + len(turn.begun), len(turn.generated.token_ids)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
