"""The page of `rljob watch --web` as routes: the page, its changes, traces, and the check of a token.

Served on this machine by `watch`, and by the run's own `status_server`. It serves the run's document and the
traces that its events name, but no other file. The token is sent as a bearer token or, once, to `login`,
which responds with a cookie. The cookie opens the page only.
"""

import asyncio
import functools
import gzip
import hashlib
import hmac

from aiohttp import web

from rljob_runtime.errors import RljobError
from rljob_runtime.record.profiles.traces import NAME
from rljob_runtime.report.display.report import LIBRARY, plotly, render_live, render_login
from rljob_runtime.report.watch.http_server import SILENT_SECONDS, bears_token, short_body
from rljob_runtime.report.watch.live_document import LiveRun

GZIP_FROM_BYTES = 2048
HTML, JSON = "text/html; charset=utf-8", "application/json"
SCRIPT = "text/javascript; charset=utf-8"
IMMUTABLE = "private, max-age=31536000, immutable"
"""Cache-Control of the library, whose URL contains its hash."""


class Page:
    """The routes of one run's page, protected by one token."""

    def __init__(self, run: LiveRun, token: str) -> None:
        self._run, self._token = run, token
        # Cookies ignore ports, so the name differs between the pages of two runs on one machine.
        self._cookie = "rljob-" + self._signature("name")[:12]

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the page."""
        return [
            web.get("/", self._html),
            web.get(f"/{LIBRARY}", self._library),
            web.get("/live", self._live),
            web.post("/login", self._login),
            web.get(f"/{{name:{NAME.pattern}}}", self._trace),
        ]

    async def _html(self, request: web.Request) -> web.Response:
        """Serve the page, or the form for the token."""
        return await asyncio.to_thread(
            _compressed_response, request, _render(self._is_authorized(request)), HTML
        )

    async def _library(self, request: web.Request) -> web.Response:
        self._require_authorization(request)
        response = await asyncio.to_thread(_compressed_response, request, plotly().encode(), SCRIPT)
        response.headers["Cache-Control"] = IMMUTABLE
        return response

    async def _live(self, request: web.Request) -> web.Response:
        self._require_authorization(request)
        query = request.query
        known, since = query.get("run", ""), number_of(query.get("since", ""))

        def answer() -> web.Response:
            return _compressed_response(request, self._run.answer(known, since or 0), JSON)

        return await asyncio.to_thread(answer)

    async def _login(self, request: web.Request) -> web.Response:
        """Exchange the token for a cookie."""
        if not hmac.compare_digest(await short_body(request), self._token.encode()):
            raise web.HTTPUnauthorized
        seal = f"{self._cookie}={self._signature('page')}; Path=/; HttpOnly; SameSite=Strict"
        return web.Response(status=204, headers={"Set-Cookie": seal})

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        """Stream a trace. The response is aborted if another file replaces it."""
        self._require_authorization(request)
        name = request.match_info["name"]
        try:
            read = await asyncio.to_thread(self._run.trace, name)
            chunk = first = await asyncio.to_thread(read, 0) if read else None
        except RljobError as error:
            raise web.HTTPServiceUnavailable from error
        if read is None or first is None:
            raise web.HTTPNotFound
        file_name = name.replace("/", "-")
        kind = {"Content-Disposition": f'attachment; filename="{file_name}"'}
        response = web.StreamResponse(headers={"Content-Type": "application/gzip", **kind})
        response.content_length = left = first.size
        await response.prepare(request)
        while chunk and chunk.data and chunk.identity == first.identity:
            async with asyncio.timeout(SILENT_SECONDS):
                await response.write(chunk.data[:left])
            left -= len(chunk.data)
            if left <= 0:
                return response
            try:
                chunk = await asyncio.to_thread(read, first.size - left)
            except RljobError:
                break
        raise ConnectionAbortedError

    def _require_authorization(self, request: web.Request) -> None:
        if not self._is_authorized(request):
            raise web.HTTPUnauthorized(text="")

    def _is_authorized(self, request: web.Request) -> bool:
        signature = request.cookies.get(self._cookie, "").encode(errors="surrogateescape")
        return bears_token(request, self._token) or hmac.compare_digest(
            signature, self._signature("page").encode()
        )

    def _signature(self, purpose: str) -> str:
        key, text = self._token.encode(), f"rljob watch {purpose}".encode()
        return hmac.new(key, text, hashlib.sha256).hexdigest()


def number_of(text: str) -> int | None:
    """Parse a whole number of a request; None if it is invalid or too large."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


@functools.cache
def _render(admitted: bool) -> bytes:
    return (render_live() if admitted else render_login()).encode()


def _compressed_response(request: web.Request, body: bytes, kind: str) -> web.Response:
    headers = {"Content-Type": kind}
    if "gzip" in request.headers.get("Accept-Encoding", "") and len(body) >= GZIP_FROM_BYTES:
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        body = gzip.compress(body, 1)
    return web.Response(body=body, headers=headers)
