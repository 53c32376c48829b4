"""The page of `rljob watch --web`, as routes: itself, what has changed, traces, a token's check.

Served on this machine by `watch`, and by the run's own `status_server`. Of a folder, the run's document
can be asked for, and the traces that its events name. The token opens it, shown as a bearer's or, once, to
`login`, which answers with a cookie that opens the page and nothing else that the token opens.
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
from rljob_runtime.report.watch.http_server import SILENT_SECONDS, short_body, shows
from rljob_runtime.report.watch.live_document import LiveRun

GZIP_FROM_BYTES = 2048
HTML, JSON = "text/html; charset=utf-8", "application/json"
SCRIPT = "text/javascript; charset=utf-8"
KEPT = "private, max-age=31536000, immutable"
"""Cache-Control of the library, whose address in the page has its hash."""


class Page:
    """Answers for one run and one token."""

    def __init__(self, run: LiveRun, token: str) -> None:
        self._run, self._token = run, token
        # Cookies know no ports: two runs' pages on one machine have names of their own.
        self._cookie = "rljob-" + self._sealed("name")[:12]

    def routes(self) -> list[web.RouteDef]:
        """What can be asked for."""
        return [
            web.get("/", self._html),
            web.get(f"/{LIBRARY}", self._library),
            web.get("/live", self._live),
            web.post("/login", self._login),
            web.get(f"/{{name:{NAME.pattern}}}", self._trace),
        ]

    async def _html(self, request: web.Request) -> web.Response:
        """The page, or the form for the token."""
        return await asyncio.to_thread(_packed, request, _rendered(self._knows(request)), HTML)

    async def _library(self, request: web.Request) -> web.Response:
        self._admit(request)
        response = await asyncio.to_thread(_packed, request, plotly().encode(), SCRIPT)
        response.headers["Cache-Control"] = KEPT
        return response

    async def _live(self, request: web.Request) -> web.Response:
        self._admit(request)
        asked = request.query
        known, since = asked.get("run", ""), number_of(asked.get("since", ""))

        def answer() -> web.Response:
            return _packed(request, self._run.answer(known, since or 0), JSON)

        return await asyncio.to_thread(answer)

    async def _login(self, request: web.Request) -> web.Response:
        """A cookie for the token."""
        if not hmac.compare_digest(await short_body(request), self._token.encode()):
            raise web.HTTPUnauthorized
        seal = f"{self._cookie}={self._sealed('page')}; Path=/; HttpOnly; SameSite=Strict"
        return web.Response(status=204, headers={"Set-Cookie": seal})

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        """A trace piece by piece. Breaks off where another file has taken its place."""
        self._admit(request)
        name = request.match_info["name"]
        try:
            read = await asyncio.to_thread(self._run.trace, name)
            piece = first = await asyncio.to_thread(read, 0) if read else None
        except RljobError as error:
            raise web.HTTPServiceUnavailable from error
        if read is None or first is None:
            raise web.HTTPNotFound
        shown = name.replace("/", "-")
        kind = {"Content-Disposition": f'attachment; filename="{shown}"'}
        response = web.StreamResponse(headers={"Content-Type": "application/gzip", **kind})
        response.content_length = left = first.size
        await response.prepare(request)
        while piece and piece.data and piece.identity == first.identity:
            async with asyncio.timeout(SILENT_SECONDS):
                await response.write(piece.data[:left])
            left -= len(piece.data)
            if left <= 0:
                return response
            try:
                piece = await asyncio.to_thread(read, first.size - left)
            except RljobError:
                break
        raise ConnectionAbortedError

    def _admit(self, request: web.Request) -> None:
        if not self._knows(request):
            raise web.HTTPUnauthorized(text="")

    def _knows(self, request: web.Request) -> bool:
        seal = request.cookies.get(self._cookie, "").encode(errors="surrogateescape")
        return shows(request, self._token) or hmac.compare_digest(
            seal, self._sealed("page").encode()
        )

    def _sealed(self, purpose: str) -> str:
        key, text = self._token.encode(), f"rljob watch {purpose}".encode()
        return hmac.new(key, text, hashlib.sha256).hexdigest()


def number_of(text: str) -> int | None:
    """A whole number that somebody sent; None for what is none, or too large to be meant."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


@functools.cache
def _rendered(admitted: bool) -> bytes:
    return (render_live() if admitted else render_login()).encode()


def _packed(request: web.Request, body: bytes, kind: str) -> web.Response:
    headers = {"Content-Type": kind}
    if "gzip" in request.headers.get("Accept-Encoding", "") and len(body) >= GZIP_FROM_BYTES:
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        body = gzip.compress(body, 1)
    return web.Response(body=body, headers=headers)
