"""Trackers that refuse, hang or tell secrets: the run goes on, and hears of it once."""

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from whole_runs import free_port

SECRET = "an-api-key-of-somebody"


class Refusing(http.server.BaseHTTPRequestHandler):
    """Tells everybody the token that it was shown."""

    shown: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.shown.append(token)
        self.send_response(401, f"no such token: {token}")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def wait_for_warning(run, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    step = 1
    while not run.warned and time.monotonic() < deadline:
        step += 1
        run.step(step, loss=0.5)
        time.sleep(0.2)
    assert run.warned


def test_a_server_that_nobody_runs_is_one_warning(tracked: Callable) -> None:
    run = tracked(mlflow={"trackingUri": f"http://127.0.0.1:{free_port()}"}, timeoutSeconds=20)
    run.begin()
    run.step(1, loss=0.5)
    wait_for_warning(run)
    run.end()

    (message,) = run.warned
    assert "tracking by mlflow" in message
    assert "Connection refused" in message


def test_a_tracker_that_hangs_costs_its_deadline_once(tracked: Callable, silent: str) -> None:
    run = tracked(mlflow={"trackingUri": silent}, timeoutSeconds=2)
    run.begin()
    run.step(1, loss=0.5)
    run.step(2, loss=0.5)

    begun = time.monotonic()
    run.end()

    assert time.monotonic() - begun < 30
    assert len(run.warned) == 1


def test_a_step_never_waits_for_a_tracker(tracked: Callable, silent: str) -> None:
    run = tracked(mlflow={"trackingUri": silent}, timeoutSeconds=3600)
    run.begin()

    begun = time.monotonic()
    for step in range(1000):
        run.step(step + 1, loss=0.5)

    assert time.monotonic() - begun < 60
    assert run.warned == []


def test_what_a_server_says_is_told_without_secrets(
    tracked: Callable, refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    run = tracked(mlflow={"trackingUri": refusing}, timeoutSeconds=20)
    run.begin()
    run.step(1, loss=0.5)
    wait_for_warning(run)
    run.end()

    (message,) = run.warned
    assert Refusing.shown[0] == SECRET
    assert "no such token: <MLFLOW_TRACKING_TOKEN>" in message
    assert SECRET not in (run.folder / "events.jsonl").read_text()
