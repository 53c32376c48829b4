"""The document that the operator reads from a driver."""

import json
import threading
import urllib.error
import urllib.request

import pytest

from rljob_runtime.status_server import StatusServer


@pytest.fixture
def server():
    server = StatusServer(port=0, token="the-token", total_steps=10, host="127.0.0.1")
    yield server
    server.close()


def ask(server: StatusServer, token: str, path: str = "/status"):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_it_tells_the_last_step_and_the_last_checkpoint(server: StatusServer) -> None:
    assert ask(server, "the-token") == {}
    metrics = {"reward/mean": 0.5, "tokens_per_second": 1234.6, "eta_seconds": 61.2, "entropy": 1.0}
    server.on_event({"kind": "step", "time": 0.0, "step": 3, "metrics": metrics})
    server.on_event({"kind": "checkpoint", "time": 0.0, "step": 3, "path": "/run/step-3"})

    assert ask(server, "the-token") == {
        "progress": {
            "step": 3, "totalSteps": 10, "reward": 0.5, "tokensPerSecond": 1235, "etaSeconds": 61,
        },
        "checkpoint": {"step": 3, "path": "/run/step-3", "time": "1970-01-01T00:00:00Z"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("token", "path", "code"), [("another", "/status", 401), ("the-token", "/elsewhere", 404)]
)
def test_it_tells_nothing_to_strangers(
    server: StatusServer, token: str, path: str, code: int
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, token, path)

    assert refused.value.code == code
    refused.value.close()


def test_closing_waits_until_the_last_news_was_asked_for(server: StatusServer) -> None:
    server.on_event({"kind": "step", "time": 0.0, "step": 1, "metrics": {}})
    closing = threading.Thread(target=server.close, kwargs={"wait_seconds": 30.0})
    closing.start()

    assert ask(server, "the-token")["progress"]["step"] == 1

    closing.join(20)
    assert not closing.is_alive()
