"""The OpenAI-compatible endpoint of a device that generates: POST /v1/chat/completions, GET /v1/models.

Listens on the loopback address alone: agents run beside the device, and nobody else reaches it. A session's
key says whose sample a request is of, is drawn at random and ends with the session. Requests wait here
until the engine, in another thread, has answered. Used by `agent_turns`.
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
from rljob_runtime.rollout.agents.session import AgentTurn, Session
from rljob_runtime.rollout.rollout_engine import Generated
from rljob_runtime.task.agents.agent_child import HOST
from rljob_runtime.task.agents.chat_request import ChatRequest, RequestRefused, read_request, sent

MAX_BODY_BYTES = 16 << 20
BODY_SECONDS = 30.0
STOP_SECONDS = 2.0
RETRY_HEADER = "x-stainless-retry-count"
"""Of OpenAI's own clients: 0 at first, more where they ask again."""
MODEL = "policy"


@dataclass(slots=True, kw_only=True)
class _Seat:
    """An open session. ask: gives a new turn to the engine. waiting: by the turn's number."""

    session: Session
    ask: Callable[[AgentTurn], None]
    waiting: dict[int, asyncio.Future[bool]] = field(default_factory=dict)


class Endpoint:
    """A server for a `ServerThread`. seconds: that a request waits at most."""

    role = "agents"

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds
        self._seats: dict[str, _Seat] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> tuple[str, int]:
        """Listen on a free port; where."""
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
        """Close all connections."""
        await self._runner.cleanup()

    def open(self, session: Session, ask: Callable[[AgentTurn], None]) -> str:
        """Take requests of a session; returns its key. ask: called with each turn that is to be drawn, in the
        server's thread. From any thread, as everything below."""
        key = secrets.token_urlsafe(32)
        with self._lock:
            self._seats[key] = _Seat(session=session, ask=ask)
        return key

    def answer(self, key: str, turn: AgentTurn, made: Generated) -> None:
        """A turn of a session was drawn."""
        with self._lock:
            seat = self._seats.get(key)
            if seat is not None:
                seat.session.answer(turn, made)
                self._tell(seat, turn.number, answered=True)

    def close(self, key: str) -> None:
        """A session is over: its requests are refused."""
        with self._lock:
            seat = self._seats.pop(key, None)
            for number in [*seat.waiting] if seat is not None else []:
                assert seat is not None
                self._tell(seat, number, answered=False)

    def _tell(self, seat: _Seat, number: int, *, answered: bool) -> None:
        waiting, loop = seat.waiting.get(number), self._loop
        if waiting is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, waiting, answered)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            seat = self._seat(request)
            asked = read_request(
                await _body(request), retry=request.headers.get(RETRY_HEADER, "0") != "0"
            )
            turn = await self._answered(seat, asked)
        except RequestRefused as refused:
            return web.json_response(refused.body, status=refused.status)
        except ConfigError as error:  # of the chat template
            return web.json_response(RequestRefused(str(error)).body, status=400)
        if asked.stream:
            return await _streamed(request, turn, asked)
        return web.json_response(_completion(turn, asked))

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._seat(request)
        except RequestRefused as refused:
            return web.json_response(refused.body, status=refused.status)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rljob"}
        return web.json_response({"object": "list", "data": [model]})

    def _seat(self, request: web.Request) -> _Seat:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        seat = self._seats.get(key.strip()) if kind.lower() == "bearer" else None
        if seat is None:
            raise RequestRefused(
                "no session has this key; it is the OPENAI_API_KEY of a session, and ends with it",
                code="invalid_api_key",
                status=401,
            )
        return seat

    async def _answered(self, seat: _Seat, asked: ChatRequest) -> AgentTurn:
        with self._lock:
            turn, is_new = seat.session.ask(asked)
            if is_new:
                seat.waiting[turn.number] = asyncio.get_running_loop().create_future()
                seat.ask(turn)
            waiting = seat.waiting[turn.number]
        try:  # a client that leaves takes no answer from one that asks again
            answered = await asyncio.wait_for(asyncio.shield(waiting), self._seconds)
        except TimeoutError:
            answered = False
        if not answered:
            raise RequestRefused("this session is over", code="session_over")
        return turn


def _resolve(waiting: asyncio.Future[bool], answered: bool) -> None:
    if not waiting.done():
        waiting.set_result(answered)


async def _body(request: web.Request) -> Any:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return parse_json(await request.read())
    except TimeoutError as error:
        raise RequestRefused(f"the body was not here in {BODY_SECONDS:g} s", status=408) from error
    except ValueError as error:
        raise RequestRefused(f"the body is no JSON: {error}") from error


def _completion(turn: AgentTurn, asked: ChatRequest) -> dict[str, Any]:
    said, finish = _said(turn)
    choice = {"index": 0, "message": said, "finish_reason": finish, "logprobs": None}
    return _head(turn, asked, "chat.completion") | {"choices": [choice], "usage": _usage(turn)}


async def _streamed(
    request: web.Request, turn: AgentTurn, asked: ChatRequest
) -> web.StreamResponse:
    """All of the answer in one event: it is read behind its end."""
    said, finish = _said(turn)
    if calls := said.get("tool_calls"):
        said = said | {"tool_calls": [call | {"index": n} for n, call in enumerate(calls)]}
    head = _head(turn, asked, "chat.completion.chunk")
    events: list[dict[str, Any]] = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in ((said, None), ({}, finish))
    ]
    if asked.usage:
        events.append(head | {"choices": [], "usage": _usage(turn)})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for text in (*map(json.dumps, events), "[DONE]"):
        await response.write(f"data: {text}\n\n".encode())
    await response.write_eof()
    return response


def _said(turn: AgentTurn) -> tuple[dict[str, Any], str]:
    assert turn.made is not None and turn.said is not None, "it is answered"
    finish = "stop" if turn.made.finish == "stop" else "length"
    return sent(turn.said), "tool_calls" if "tool_calls" in turn.said else finish


def _head(turn: AgentTurn, asked: ChatRequest, kind: str) -> dict[str, Any]:
    assert turn.made is not None, "it is answered"
    return {
        "id": f"chatcmpl-{turn.made.uid.replace(' ', '-')}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model,
        "system_fingerprint": f"weights-{turn.made.version}",
    }


def _usage(turn: AgentTurn) -> dict[str, int]:
    assert turn.made is not None, "it is answered"
    read, drawn = 1 + len(turn.begun), len(turn.made.token_ids)
    return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}
