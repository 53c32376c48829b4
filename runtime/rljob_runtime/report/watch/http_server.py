"""The HTTP server of `rljob watch --web` and of a run's `status_server`: routes for a `ServerThread`."""

import asyncio
import hmac
import logging
import socket
from collections.abc import Iterable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

SILENT_SECONDS = 30.0
"""Timeout of a connection that sends nothing, or does not read its response."""
STOP_SECONDS = 2.0
"""Time for pending responses when the server stops."""
MAX_BODY_BYTES = 4096
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

log = logging.getLogger(__name__)
# Invalid HTTP is answered with 400 and not logged: a log line would quote untrusted input.
log.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


class HttpServer:
    """Serves `routes` between `start` and `stop`. port: 0 selects a free one. Requests are not logged."""

    role = "http"

    def __init__(self, routes: Iterable[web.RouteDef], *, host: str, port: int) -> None:
        self._routes, self._address = routes, (host, port)

    async def start(self) -> tuple[str, int]:
        """Start listening and return the address. Raises OSError and OverflowError."""
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
        listener = socket.create_server(self._address)
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()
        host, port = listener.getsockname()
        return host, port

    async def stop(self) -> None:
        """Close all connections; those with a pending response after STOP_SECONDS."""
        await self._runner.cleanup()


def bears_token(request: web.Request, token: str) -> bool:
    """Return whether the request carries this bearer token."""
    header = request.headers.get("Authorization", "").encode(errors="surrogateescape")
    return hmac.compare_digest(header, f"Bearer {token}".encode())


async def short_body(request: web.Request) -> bytes:
    """Read the body; 413 if it is longer than MAX_BODY_BYTES."""
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
    except (TimeoutError, ConnectionError):  # the client notices the missing bytes
        if request.transport is not None:
            request.transport.abort()
        return web.Response()
    return response


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
