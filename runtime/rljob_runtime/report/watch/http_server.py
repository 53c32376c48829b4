"""What `rljob watch --web` and a run's own `status_server` listen with: routes, for a `ServerThread`."""

import asyncio
import hmac
import logging
import socket
from collections.abc import Iterable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

SILENT_SECONDS = 30.0
"""A connection that says nothing, or does not take what it asked for, for so long is closed."""
STOP_SECONDS = 2.0
"""For answers under way when it is stopped."""
MAX_BODY_BYTES = 4096
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

log = logging.getLogger(__name__)
# Strangers write no log: what is no HTTP is answered with 400, and a line would quote it.
log.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


class HttpServer:
    """Answers by `routes` between `start` and `stop`. port: 0 takes a free one. Logs no requests."""

    role = "http"

    def __init__(self, routes: Iterable[web.RouteDef], *, host: str, port: int) -> None:
        self._routes, self._place = routes, (host, port)

    async def start(self) -> tuple[str, int]:
        """Listen; where. Raises OSError and OverflowError."""
        app = web.Application(middlewares=[_send], client_max_size=MAX_BODY_BYTES)
        app.add_routes(self._routes)
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=log,
            keepalive_timeout=SILENT_SECONDS,
            shutdown_timeout=STOP_SECONDS,
        )
        listening = socket.create_server(self._place)
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()
        host, port = listening.getsockname()
        return host, port

    async def stop(self) -> None:
        """Close all connections, those that wait for an answer after STOP_SECONDS."""
        await self._runner.cleanup()


def shows(request: web.Request, token: str) -> bool:
    """Whether it comes from the bearer of a token."""
    shown = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    return hmac.compare_digest(shown, f"Bearer {token}".encode())


async def short_body(request: web.Request) -> bytes:
    """The body; 413 where it is longer than MAX_BODY_BYTES."""
    size = request.content_length or 0
    if size > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, size)
    async with asyncio.timeout(SILENT_SECONDS):
        return await request.read()


@web.middleware
async def _send(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
        async with asyncio.timeout(SILENT_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except (TimeoutError, ConnectionError):  # it sees that bytes are missing
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    return response


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
