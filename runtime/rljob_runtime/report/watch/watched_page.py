"""The page of `rljob watch --web`, as answers to requests: itself, what has changed, traces, a token's check.

Used by `page_server` on this machine and by the run's own `status_server`. Of a folder, the run's document
can be asked for, and the traces that its events name. The token opens it, shown as a bearer's or, once, to
`login`, which answers with a cookie that opens the page and nothing else that the token opens.
"""

import functools
import gzip
import hashlib
import hmac
import http.cookies
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs

from rljob_runtime.errors import RljobError
from rljob_runtime.record.profiles.traces import NAME
from rljob_runtime.report.display.report import render_live, render_login
from rljob_runtime.report.watch.follow import Piece, Read
from rljob_runtime.report.watch.live_document import LiveRun

PAGE, LIVE, LOGIN = "/", "/live", "/login"
MAX_TOKEN_BYTES = 4096
GZIP_FROM_BYTES = 2048
HTML, JSON = "text/html; charset=utf-8", "application/json"
GZIP = "application/gzip"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Headers(Protocol):
    """A request's headers, by name in any case."""

    def get(self, name: str, default: str, /) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status, body and headers of a response. rest: so many bytes behind `body`, read as they are sent."""

    code: int
    headers: Mapping[str, str]
    body: bytes = b""
    rest: Iterator[bytes] = field(default_factory=lambda: iter(()))
    rest_bytes: int = 0


class Page:
    """Answers for one run and one token."""

    def __init__(self, run: LiveRun, token: str) -> None:
        self._run = run
        self._token = token.encode()
        # Cookies know no ports: two runs' pages on one machine have names of their own.
        self._cookie = "rljob-" + self._sealed("name")[:12]

    def answers(self, target: str) -> bool:
        """Whether a request's target is the page's."""
        path = target.partition("?")[0]
        return path in (PAGE, LIVE, LOGIN) or NAME.fullmatch(path[1:]) is not None

    def get(self, target: str, headers: Headers) -> Answer:
        """Answer a GET: the page or the form for the token; what has changed, or a trace, or 401."""
        path, _, query = target.partition("?")
        packs = "gzip" in headers.get("Accept-Encoding", "")
        if path == PAGE:
            return _packed(_html(self._admits(headers)), HTML, packs)
        if path == LOGIN:
            return Answer(code=405, headers=HEADERS)
        if not self._admits(headers):
            return Answer(code=401, headers=HEADERS)
        if path != LIVE:
            return _trace(path[1:], self._run.trace(path[1:]))
        asked = parse_qs(query)
        since = number_of(asked.get("since", [""])[0])
        return _packed(self._run.answer(asked.get("run", [""])[0], since or 0), JSON, packs)

    def post(self, target: str, body: bytes) -> Answer:
        """Answer a POST: a cookie for the token."""
        if target != LOGIN:
            return Answer(code=405, headers=HEADERS)
        if not hmac.compare_digest(body, self._token):
            return Answer(code=401, headers=HEADERS)
        seal = f"{self._cookie}={self._sealed('page')}; Path=/; HttpOnly; SameSite=Strict"
        return Answer(code=204, headers={**HEADERS, "Set-Cookie": seal})

    def _admits(self, headers: Headers) -> bool:
        bearer = headers.get("Authorization", "").encode()
        try:
            cookie = http.cookies.SimpleCookie(headers.get("Cookie", "")).get(self._cookie)
        except http.cookies.CookieError:
            cookie = None
        seal = cookie.value.encode() if cookie else b""
        return hmac.compare_digest(bearer, b"Bearer " + self._token) or hmac.compare_digest(
            seal, self._sealed("page").encode()
        )

    def _sealed(self, purpose: str) -> str:
        return hmac.new(self._token, f"rljob watch {purpose}".encode(), hashlib.sha256).hexdigest()


def number_of(text: str) -> int | None:
    """A whole number that somebody sent; None for what is none, or too large to be meant."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _trace(name: str, read: Read | None) -> Answer:
    try:
        first = read(0) if read else None
    except RljobError:
        return Answer(code=503, headers=HEADERS)
    if read is None or first is None:
        return Answer(code=404, headers=HEADERS)
    shown = name.replace("/", "-")
    kind = {"Content-Type": GZIP, "Content-Disposition": f'attachment; filename="{shown}"'}
    return Answer(
        code=200,
        headers={**HEADERS, **kind},
        body=first.data,
        rest=_rest(first, read),
        rest_bytes=first.size - len(first.data),
    )


def _rest(piece: Piece, read: Read) -> Iterator[bytes]:
    """The file behind its first piece. Ends early where another file has taken its place."""
    place, size, identity = len(piece.data), piece.size, piece.identity
    while place < size:
        found = read(place)
        if found is None or not found.data or found.identity != identity:
            return
        yield found.data[: size - place]
        place += len(found.data)


@functools.cache
def _html(admitted: bool) -> bytes:
    return (render_live() if admitted else render_login()).encode()


def _packed(body: bytes, kind: str, packs: bool) -> Answer:
    headers = {**HEADERS, "Content-Type": kind}
    if not packs or len(body) < GZIP_FROM_BYTES:
        return Answer(code=200, headers=headers, body=body)
    headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Answer(code=200, headers=headers, body=gzip.compress(body, 1))
