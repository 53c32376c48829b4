"""Trackers that refuse, hang or tell secrets: the run goes on, hears of it once, at its end of the loss."""

import errno
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from free_ports import free_port

from rljob_runtime.report.tracking import trackers

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


class Taking:
    """A tracker's process that takes everything once it may."""

    may = threading.Event()

    def __init__(self, *args: object, **kwargs: object) -> None:
        assert self.may.wait(20)

    def send(self, message: object) -> None:
        """Nothing."""

    def answer(self, seconds: float) -> dict[str, bool]:
        return {"ready": True}

    def kill(self) -> None:
        """Nothing."""


def no_process(*args: object, **kwargs: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


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


def test_a_server_that_nobody_runs_is_one_warning_and_one_of_the_loss(tracked: Callable) -> None:
    run = tracked(mlflow={"trackingUri": f"http://127.0.0.1:{free_port()}"}, timeoutSeconds=20)
    run.begin()
    run.step(1, loss=0.5)
    wait_for_warning(run)
    run.end()

    first, last = run.warned
    assert "tracking by mlflow" in first
    assert "Connection refused" in first
    assert "it lacks" not in first
    assert "Connection refused>; it lacks " in last


@pytest.mark.parametrize("most", [10_000, 20])
def test_steps_that_a_tracker_lacks_are_counted_at_the_end_whatever_was_told_before(
    tracked: Callable, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(trackers, "LineChild", no_process)
    monkeypatch.setattr(trackers, "MOST_WAITING", most)
    run = tracked(tensorboard={}, timeoutSeconds=20)
    run.begin()
    steps = 0
    while not run.warned or steps < 500:
        steps += 1
        run.step(steps, loss=0.5)
    (feed,) = run._trackers._feeds
    waiting = len(feed._waiting)
    run.end()

    first, last = run.warned
    assert "Too many open files; the run goes on" in first
    assert f"Too many open files; it lacks {steps} steps and evaluations," in last
    assert waiting == min(most, steps)


def test_a_tracker_that_fails_is_tried_ever_more_rarely_and_every_five_minutes_at_least(
    tracked: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(feed: object, pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) < 9

    pauses: list[float] = []
    monkeypatch.setattr(trackers, "LineChild", no_process)
    monkeypatch.setattr(trackers._Feed, "_may_try_again", wait)
    run = tracked(tensorboard={}, timeoutSeconds=20)
    run.begin()
    run.step(1, loss=0.5)
    run.end()

    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_steps_that_were_dropped_are_told_though_the_rest_arrived(
    tracked: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "LineChild", Taking)
    monkeypatch.setattr(trackers, "MOST_WAITING", 20)
    run = tracked(tensorboard={}, timeoutSeconds=20)
    run.begin()
    for step in range(50):
        run.step(step + 1, loss=0.5)
    Taking.may.set()
    run.end()

    (message,) = run.warned
    assert "more than 20 waited for it; it lacks 30 steps and evaluations" in message


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

    message = run.warned[0]
    assert Refusing.shown[0] == SECRET
    assert "no such token: <MLFLOW_TRACKING_TOKEN>" in message
    assert SECRET not in (run.folder / "events.jsonl").read_text()
