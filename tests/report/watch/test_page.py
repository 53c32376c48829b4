"""The page over HTTP: for who has the token, of the folder traces alone, and nothing for strangers."""

import contextlib
import gzip
import hashlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from growing_run import GrowingRun, line_of
from typer.testing import CliRunner

from rljob_runtime.cli.main import app
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.report.watch import follow, http_server, watched_page
from rljob_runtime.report.watch.http_server import MAX_BODY_BYTES, HttpServer
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.report.watch.watched_page import Page

TOKEN = "the-token-of-this-run"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Server:
    """A server of a run's page, asked over HTTP."""

    def __init__(self, page: Page) -> None:
        self._thread = ServerThread(HttpServer(page.routes(), host="127.0.0.1", port=0))
        _, self.port = self._thread.start()

    def ask(
        self, method: str, target: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, Any, bytes]:
        """Status, headers and body of an answer. The target goes out as it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, target, body=body, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        self._thread.stop()


@pytest.fixture
def run(growing) -> GrowingRun:
    return growing(steps=3)


@pytest.fixture
def server(run) -> Iterator[Server]:
    run.write()
    (run.folder / "rljob.yaml").write_text("kind: RLJob\n")
    made = Server(Page(LiveRun(LocalRun(run.folder)), TOKEN))
    yield made
    made.close()


def cookie_of(server: Server) -> str:
    """What a browser sends after the login."""
    code, headers, _ = server.ask("POST", "/login", body=TOKEN.encode())
    assert code == 204
    return str(headers["Set-Cookie"]).split(";")[0]


def test_the_bearer_of_the_token_is_told_of_the_run(server) -> None:
    code, headers, body = server.ask("GET", "/live", BEARER)

    assert (code, headers["Content-Type"]) == (200, "application/json")
    told = json.loads(body)
    assert told["parts"]["name"] == "spell-backward-grpo"
    assert told["parts"]["spec"] == "kind: RLJob\n"
    assert told["lists"]["samples"]["order"] == ["1", "2", "3"]


def test_a_login_brings_a_cookie_that_opens_the_page(server) -> None:
    cookie = {"Cookie": f"other=1; {cookie_of(server)}"}

    _, _, page = server.ask("GET", "/", cookie)
    code, _, _ = server.ask("GET", "/live", cookie)

    assert code == 200
    assert b'data-live="plotly.js?' in page and b'id="data"' in page


def test_a_browser_asks_once_for_the_library(server) -> None:
    cookie = {"Cookie": cookie_of(server)}
    _, _, page = server.ask("GET", "/", cookie)
    [address] = re.findall(r'data-live="(plotly\.js\?[0-9a-f]+)"', page.decode())

    code, headers, library = server.ask("GET", f"/{address}", cookie)
    stranger, _, _ = server.ask("GET", f"/{address}")

    assert (code, stranger) == (200, 401)
    assert headers["Cache-Control"] == "private, max-age=31536000, immutable"
    assert hashlib.sha256(library).hexdigest().startswith(address.split("?")[1])
    assert len(page) < 100_000


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_is_not_the_token(server) -> None:
    _, headers, _ = server.ask("POST", "/login", body=TOKEN.encode())

    assert headers["Set-Cookie"].endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert TOKEN not in headers["Set-Cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer another"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer "},
        {"Cookie": "rljob=1"},
        {"Cookie": "=;;"},
        {"Cookie": "rljob-\xff=\xff", "Authorization": "Bearer \xff"},
    ],
)
def test_a_stranger_gets_a_form_and_nothing_of_the_run(server, headers) -> None:
    code, _, body = server.ask("GET", "/live", headers)
    _, _, form = server.ask("GET", "/", headers)

    assert (code, body) == (401, b"")
    assert b"Plotly" not in form and b"spell" not in form
    assert b'type="password"' in form


def test_what_is_no_http_is_refused_and_not_logged(server, capfd) -> None:
    assert server.ask("GET", "/live", {**BEARER, "Cookie": "=;;\x01"})[0] == 400
    assert server.ask("GET", "*", BEARER)[0] == 400
    assert capfd.readouterr() == ("", "")


def test_a_cookie_with_another_value_opens_nothing(server) -> None:
    name = cookie_of(server).partition("=")[0]

    for value in ("", TOKEN, "0" * 64):
        assert server.ask("GET", "/live", {"Cookie": f"{name}={value}"})[0] == 401


@pytest.mark.parametrize("body", [b"", b"another", TOKEN.encode() + b"\n", b"\xff\x00"])
def test_a_wrong_token_logs_nobody_in(server, body: bytes) -> None:
    code, headers, _ = server.ask("POST", "/login", body=body)

    assert (code, headers["Set-Cookie"]) == (401, None)


@pytest.mark.parametrize(
    ("length", "code"), [(str(MAX_BODY_BYTES + 1), 413), ("9" * 5000, 400), ("-1", 400), ("x", 400)]
)
def test_a_body_that_is_no_token_is_not_read(server, capfd, length: str, code: int) -> None:
    assert server.ask("POST", "/login", {"Content-Length": length})[0] == code
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "target",
    [
        "/events.jsonl",
        "/rljob.yaml",
        "/run/events.jsonl",
        "/../rljob.yaml",
        "/live/../rljob.yaml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "//[",
        "/live%00",
        "/login/",
        "/status",
        "/profile/",
        "/profile/step-1/../../rljob.yaml",
        "/profile/step-1/%2e%2e/%2e%2e/rljob.yaml",
        "/profile/step-1/rank-0-../../../rljob.yaml",
    ],
)
def test_nothing_but_the_page_can_be_asked_for(server, target: str) -> None:
    assert server.ask("GET", target, BEARER)[0] == 404
    assert server.ask("POST", target, BEARER, TOKEN.encode())[0] == 404


@pytest.mark.parametrize("piece_bytes", [7, 2**20], ids=["in pieces", "whole"])
def test_a_trace_that_the_run_has_told_of_arrives(server, run, monkeypatch, piece_bytes) -> None:
    monkeypatch.setattr(follow, "FILE_PIECE_BYTES", piece_bytes)
    content = gzip.compress(bytes(range(256)))
    name = run.record(1, content)

    for headers in (BEARER, {"Cookie": cookie_of(server)}):
        code, said, body = server.ask("GET", f"/{name}", {**headers, "Accept-Encoding": "gzip"})

        assert (code, body) == (200, content)
        assert (said["Content-Type"], said["Content-Encoding"]) == ("application/gzip", None)
        assert (
            said["Content-Disposition"]
            == 'attachment; filename="profile-step-1-rank-0-update.json.gz"'
        )


def test_a_stranger_gets_no_trace(server, run) -> None:
    name = run.record(1, b"trace")

    assert server.ask("GET", f"/{name}")[0] == 401
    assert server.ask("GET", f"/{name}", {"Cookie": "rljob=1"})[0] == 401


def test_a_file_that_no_event_names_is_no_trace(server, run) -> None:
    run.record(1, b"trace")
    (run.folder / "profile" / "step-1" / "rank-1-update.json.gz").write_bytes(b"of nobody")

    assert server.ask("GET", "/profile/step-1/rank-1-update.json.gz", BEARER)[0] == 404


@pytest.mark.parametrize("path", ["rljob.yaml", "/etc/passwd", "profile/step-1/../../rljob.yaml"])
def test_an_event_that_names_another_file_opens_nothing(server, run, path: str) -> None:
    told = {"step": 1, "rank": 0, "state": "update", "path": path, "seconds": 1.0, "bytes": 1}
    run.append(line_of({"time": 1.0, "kind": "profile", **told}))

    assert server.ask("GET", f"/{path}", BEARER)[0] == 404


def test_a_trace_that_is_gone_is_not_found(server, run) -> None:
    name = run.record(1, b"trace")
    (run.folder / name).unlink()

    assert server.ask("GET", f"/{name}", BEARER)[0] == 404


def test_a_trace_that_is_replaced_while_it_is_sent_breaks_off(server, run, monkeypatch) -> None:
    monkeypatch.setattr(follow, "FILE_PIECE_BYTES", 4)
    name = run.record(1, b"0123456789")
    (run.folder / "another").write_bytes(b"9876543210")
    read = LocalRun.reader

    def replaced(self: LocalRun, file: str) -> follow.Read:
        def piece(offset: int) -> follow.TailChunk | None:
            if offset == 8:
                (run.folder / "another").replace(run.folder / name)
            return read(self, file)(offset)

        return piece

    monkeypatch.setattr(LocalRun, "reader", replaced)

    with pytest.raises(http.client.IncompleteRead):
        server.ask("GET", f"/{name}", BEARER)


@pytest.mark.parametrize(
    "said", [b"", b"GET /", b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"]
)
def test_a_connection_that_falls_silent_is_closed(run, monkeypatch, said: bytes) -> None:
    monkeypatch.setattr(http_server, "SILENT_SECONDS", 0.2)
    server = Server(Page(LiveRun(LocalRun(run.folder)), TOKEN))

    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        link.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(999) == b""

    server.close()


def test_a_reader_that_takes_nothing_is_left(run, monkeypatch) -> None:
    monkeypatch.setattr(watched_page, "SILENT_SECONDS", 0.2)
    name = run.record(1, bytes(2**25))
    server = Server(Page(LiveRun(LocalRun(run.folder)), TOKEN))

    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        ask = f"GET /{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        link.sendall(ask.encode())
        time.sleep(1.0)
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := link.recv(2**20):
                taken += len(piece)
    assert 0 < taken < 2**25

    server.close()


def test_other_methods_are_refused(server) -> None:
    assert server.ask("GET", "/login", BEARER)[0] == 405
    assert server.ask("POST", "/live", BEARER)[0] == 405
    assert server.ask("DELETE", "/", BEARER)[0] == 405


@pytest.mark.parametrize(
    "query",
    ["?since=-1", "?since=x", "?since=%C2%B2", "?since=" + "9" * 5000, "?run=%ff&since=9", "?"],
)
def test_a_strange_question_is_answered_with_everything(server, query: str) -> None:
    code, _, body = server.ask("GET", f"/live{query}", BEARER)

    assert code == 200
    assert json.loads(body)["parts"]["name"] == "spell-backward-grpo"


def test_answers_are_packed_for_who_can_unpack_them(server) -> None:
    plain = server.ask("GET", "/live", BEARER)[2]

    _, headers, packed = server.ask("GET", "/live", {**BEARER, "Accept-Encoding": "gzip"})

    assert headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed))["lists"] == json.loads(plain)["lists"]
    assert len(packed) < len(plain) / 2


def test_the_page_may_ask_its_own_server_alone_and_stands_in_no_frame(server) -> None:
    for headers in ({}, BEARER):
        _, said, body = server.ask("GET", "/", headers)
        policy = body.decode().split('Content-Security-Policy" content="')[1].split('"')[0]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy
        assert "unsafe-inline' " not in policy.split("style-src")[0] and "http" not in policy
        assert (said["X-Frame-Options"], said["Cache-Control"]) == ("DENY", "no-store")
        assert said["Referrer-Policy"] == "no-referrer"


def test_requests_leave_no_trace_in_the_logs(server, capfd) -> None:
    server.ask("GET", f"/?token={TOKEN}")
    server.ask("POST", "/login", body=TOKEN.encode())
    server.ask("GET", "/nowhere")

    assert capfd.readouterr() == ("", "")


def test_a_port_that_is_taken_is_told(server, run) -> None:
    command = ["watch", str(run.folder), "--web", "--port", str(server.port)]

    done = CliRunner().invoke(app, command)

    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {server.port}" in done.output
