"""The HTTP server of `rljob watch --web`, and what it shares with the run's own `status_server`."""

import contextlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from rljob_runtime.errors import ConfigError, RljobError
from rljob_runtime.report.watch.watched_page import MAX_TOKEN_BYTES, Answer, Page, number_of

SILENT_SECONDS = 30.0
"""A connection that says nothing for so long is closed."""


def page_server(page: Page, *, host: str, port: int) -> ThreadingHTTPServer:
    """A server of the page, not yet serving. port: 0 takes a free one. Raises ConfigError."""

    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_SECONDS

        def do_GET(self) -> None:
            if not answer_get(self, page):
                self.send_error(404)

        def do_POST(self) -> None:
            answer_post(self, page)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {error}; name others with --host and --port"
        ) from error
    server.daemon_threads = True
    return server


def answer_get(request: BaseHTTPRequestHandler, page: Page) -> bool:
    """Answer a GET if it is the page's."""
    if not page.answers(request.path):
        return False
    _send(request, page.get(request.path, request.headers))
    return True


def answer_post(request: BaseHTTPRequestHandler, page: Page) -> None:
    """Answer a POST; 404 where it is not the page's."""
    size = number_of(request.headers.get("Content-Length") or "0")
    if not page.answers(request.path):
        request.send_error(404)
    elif size is None or size > MAX_TOKEN_BYTES:
        request.send_error(413)
    else:
        _send(request, page.post(request.path, request.rfile.read(size)))


def _send(request: BaseHTTPRequestHandler, answer: Answer) -> None:
    request.send_response(answer.code)
    for name, value in answer.headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(answer.body) + answer.rest_bytes))
    # the reader may have left or fallen silent, or the rest be gone: it sees that bytes are missing
    with contextlib.suppress(ConnectionError, TimeoutError, RljobError):
        request.end_headers()
        request.wfile.write(answer.body)
        for piece in answer.rest:
            request.wfile.write(piece)
