"""The page of `rljob watch --web`, as answers to requests: itself, what has changed, and a token's check.

Used by `server` on this machine and by the run's own `status_server`. Holds no file's path: nothing of a
folder but the run's document can be asked for. The token opens it, shown as a bearer's or, once, to
`login`, which answers with a cookie that opens the page and nothing else that the token opens.
"""

import functools
import gzip
import hashlib
import hmac
import http.cookies
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

from rljob_runtime.display.report import render_live, render_login
from rljob_runtime.watch.live_document import LiveRun

PAGE, LIVE, LOGIN = "/", "/live", "/login"
MAX_TOKEN_BYTES = 4096
GZIP_FROM_BYTES = 2048
HTML, JSON = "text/html; charset=utf-8", "application/json"
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
    """Status, body and headers of a response."""

    code: int
    headers: Mapping[str, str]
    body: bytes = b""


class Page:
    """Answers for one run and one token."""

    def __init__(self, run: LiveRun, token: str) -> None:
        self._run = run
        self._token = token.encode()
        # Cookies know no ports: two runs' pages on one machine have names of their own.
        self._cookie = "rljob-" + self._sealed("name")[:12]

    def answers(self, target: str) -> bool:
        """Whether a request's target is the page's."""
        return target.partition("?")[0] in (PAGE, LIVE, LOGIN)

    def get(self, target: str, headers: Headers) -> Answer:
        """Answer a GET: the page, or the form that asks for the token; what has changed, or 401."""
        path, _, query = target.partition("?")
        packs = "gzip" in headers.get("Accept-Encoding", "")
        if path == PAGE:
            return _packed(_html(self._admits(headers)), HTML, packs)
        if path != LIVE:
            return Answer(code=405, headers=HEADERS)
        if not self._admits(headers):
            return Answer(code=401, headers=HEADERS)
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


@functools.cache
def _html(admitted: bool) -> bytes:
    return (render_live() if admitted else render_login()).encode()


def _packed(body: bytes, kind: str, packs: bool) -> Answer:
    headers = {**HEADERS, "Content-Type": kind}
    if not packs or len(body) < GZIP_FROM_BYTES:
        return Answer(code=200, headers=headers, body=body)
    headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Answer(code=200, headers=headers, body=gzip.compress(body, 1))
