"""The document that the operator reads from a driver, and the number that it asks for."""

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest
from run_events import event_of
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import resolve
from rljob_runtime.record.event_types import RunStartedEvent, StepEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.run_figures import RunFigures
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.status_server import StatusServer

SEPARATED = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 4}


def desk_of(**spec: Any) -> ScaleRequests:
    """The small job's requests, before its driver is there."""
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"] |= {"accelerator": {"devicesPerNode": 2}, **spec}
    return ScaleRequests(resolve(read_job(job)), clock=lambda: 7.0)


@pytest.fixture
def serve(tmp_path):
    """serve(requests): a server on a free port."""
    servers = []

    def start(requests: ScaleRequests) -> StatusServer:
        server = StatusServer(
            port=0,
            token="the-token",
            total_steps=10,
            requests=requests,
            figures=RunFigures(),
            run=LocalRun(tmp_path),
            stacks=StacksRequests(),
            save=threading.Event(),
            host="127.0.0.1",
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def server(serve) -> StatusServer:
    return serve(desk_of(placement=SEPARATED))


def ask(server: StatusServer, token: str, path: str = "/status", body: bytes | None = None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}",
        headers={"Authorization": f"Bearer {token}"},
        data=body,
        method="GET" if body is None else "PUT",
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def refusal(server: StatusServer, body: bytes) -> tuple[int, str]:
    """Code and message of an answer to PUT /scale that is no success."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, "the-token", "/scale", body)
    with refused.value as answer:
        return answer.code, json.load(answer)["error"]


def places(count: int) -> list[DevicePlace]:
    """Devices 1 to `count`, two a pod."""
    return [
        DevicePlace(device=n, host=f"pod-{n // 2}", address=f"10.0.0.{n // 2}")
        for n in range(1, count + 1)
    ]


def test_it_tells_the_last_step_and_the_last_checkpoint(server: StatusServer) -> None:
    assert set(ask(server, "the-token")) == {"rollout"}
    metrics = {"reward/mean": 0.5, "tokens_per_second": 1234.6, "eta_seconds": 61.2, "entropy": 1.0}
    server.on_event(event_of({"kind": "step", "step": 3, "seconds": 1.0, "metrics": metrics}))
    server.on_event(event_of({"kind": "checkpoint", "time": 0.0, "step": 3, "path": "/run/step-3"}))

    told = ask(server, "the-token")

    del told["rollout"]
    assert told == {
        "progress": {
            "step": 3, "totalSteps": 10, "reward": 0.5, "tokensPerSecond": 1235, "etaSeconds": 61,
        },
        "checkpoint": {"step": 3, "path": "/run/step-3", "time": "1970-01-01T00:00:00Z"},
    }  # fmt: skip


@pytest.mark.parametrize("body", [None, b'{"rollout": 2}'])
@pytest.mark.parametrize(
    ("token", "path", "code"), [("another", None, 401), ("the-token", "/elsewhere", 404)]
)
def test_it_tells_and_does_nothing_for_strangers(
    server: StatusServer, token: str, path: str | None, code: int, body: bytes | None
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, token, path or ("/scale" if body else "/status"), body)

    assert refused.value.code == code
    assert server.requests.latest.turn == 0
    refused.value.close()


def test_a_checkpoint_is_asked_for_by_whoever_has_the_token(server: StatusServer) -> None:
    def post(token: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/checkpoint",
            headers={"Authorization": f"Bearer {token}"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)

    with pytest.raises(urllib.error.HTTPError, match="401"):
        post("another")
    assert not server.save.is_set()

    assert post("the-token") == 202
    assert server.save.is_set()


def test_closing_waits_until_the_last_news_was_asked_for(server: StatusServer) -> None:
    server.on_event(event_of({"kind": "step", "step": 1, "seconds": 1.0, "metrics": {}}))
    closing = threading.Thread(target=server.close, kwargs={"wait_seconds": 30.0})
    closing.start()

    assert ask(server, "the-token")["progress"]["step"] == 1

    closing.join(20)
    assert not closing.is_alive()


def test_fewer_devices_are_told_as_draining_the_last_first(server: StatusServer) -> None:
    server.requests.publish(
        places(4), hosts=["pod-0", "pod-0", "pod-1", "pod-1", "pod-2"], joining=0
    )

    told = ask(server, "the-token", "/scale", b'{"rollout": 2}')["rollout"]

    assert told == {
        "wanted": 2,
        "ready": 4,
        "joining": 0,
        "draining": [
            {"device": 4, "host": "pod-2", "address": "10.0.0.2"},
            {"device": 3, "host": "pod-1", "address": "10.0.0.1"},
        ],
        "hosts": ["pod-0", "pod-1", "pod-2"],
        "message": "",
    }
    assert ask(server, "the-token")["rollout"] == told


def test_a_number_is_taken_before_the_driver_is_there(server: StatusServer) -> None:
    ask(server, "the-token", "/scale", b'{"rollout": 8}')

    asked = server.requests.latest
    assert (asked.count, asked.turn, asked.time) == (8, 1, 7.0)
    assert ask(server, "the-token")["rollout"]["ready"] == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"rollout": 0}', "spec.placement.rolloutDevices: is 0; must be at least 1"),
        (b'{"rollout": 3}', "8 prompts cannot be shared evenly by 3 rollout replicas"),
        (b'{"rollout": true}', 'the body must be {"rollout": N}'),
        (b'{"rollout": 2.0}', 'the body must be {"rollout": N}'),
        (b'{"rollout": 2, "update": 2}', 'the body must be {"rollout": N}'),
        (b"2", 'the body must be {"rollout": N}'),
        (b"{", 'the body must be {"rollout": N}'),
        (b"\xff", 'the body must be {"rollout": N}'),
        (b" " * 5000 + b'{"rollout": 2}', 'the body must be {"rollout": N}'),
    ],
)
def test_a_number_that_the_job_cannot_have_is_refused(
    server: StatusServer, body: bytes, message: str
) -> None:
    code, told = refusal(server, body)

    assert code == 400
    assert message in told
    assert server.requests.latest.turn == 0


def test_a_colocated_job_is_not_scaled(serve) -> None:
    server = serve(desk_of())

    code, message = refusal(server, b'{"rollout": 2}')

    assert code == 409
    assert "cannot change with mode colocated" in message
    assert ask(server, "the-token")["rollout"]["wanted"] == 2


def test_alarms_are_told_until_they_are_over(server: StatusServer) -> None:
    raised = {"time": 1.0, "kind": "alarm", "step": 3, "policy": "warn", "state": "raised"}
    entropy = {**raised, "alarm": "entropyCollapse", "message": "entropy 0"}

    server.on_event(event_of(entropy))
    server.on_event(event_of({**raised, "alarm": "truncation", "message": "cut"}))
    both = ask(server, "the-token")["alarms"]
    server.on_event(event_of({**entropy, "state": "cleared", "step": 4}))

    assert [alarm["name"] for alarm in both] == ["entropyCollapse", "truncation"]
    assert ask(server, "the-token")["alarms"] == [
        {"name": "truncation", "step": 3, "message": "cut"}
    ]


def test_slow_devices_are_one_alarm_as_long_as_there_are_any(server: StatusServer) -> None:
    slow = {"kind": "straggler", "step": 9, "status": "slow", "hosts": ["node-b"]}
    slow |= {"state": "generate", "devices": [3], "factor": 2.6, "steps": 5}
    other = {**slow, "devices": [4, 5], "state": "update"}

    server.on_event(event_of(slow))
    server.on_event(event_of(other))
    (both,) = ask(server, "the-token")["alarms"]
    server.on_event(event_of({**slow, "status": "over", "step": 14}))
    (one,) = ask(server, "the-token")["alarms"]
    server.on_event(event_of({**other, "status": "replaced", "step": 14}))

    text = "device 3 (node-b) is slow: generate takes 2.60 times its peers' time, in 5 steps up to step 9"
    assert both["name"] == "straggler"
    assert both["message"].startswith(f"{text}; devices 4, 5 (node-b) are slow: update takes")
    assert one["message"].startswith("devices 4, 5 (node-b)")
    assert ask(server, "the-token")["alarms"] == []


def test_replicas_that_are_left_out_are_told_until_all_train(server: StatusServer) -> None:
    fewer = {"kind": "replicas", "step": 9, "live": 1, "wanted": 2}

    before = ask(server, "the-token")
    server.on_event(event_of({**fewer, "left_out": [1], "hosts": ["node-b"]}))
    one = ask(server, "the-token")["replicas"]
    server.on_event(event_of({**fewer, "step": 20, "live": 2}))

    assert "replicas" not in before
    assert one == {"step": 9, "live": 1, "wanted": 2, "leftOut": [1], "hosts": ["node-b"]}
    assert ask(server, "the-token")["replicas"]["live"] == 2


def test_it_serves_the_runs_page_to_the_bearer_of_the_token(server, tmp_path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write(RunStartedEvent(name="small", steps=10))
    log.write(StepEvent(step=3, seconds=1.0, metrics={"reward/mean": 0.5}))
    log.close()

    told = ask(server, "the-token", "/live")

    assert (told["parts"]["name"], told["parts"]["status"]["step"]) == ("small", 3)


def test_the_pages_cookie_opens_the_page_alone(server) -> None:
    address = f"http://127.0.0.1:{server.port}"
    login = urllib.request.Request(f"{address}/login", data=b"the-token", method="POST")
    with urllib.request.urlopen(login, timeout=10) as answer:
        cookie = answer.headers["Set-Cookie"].split(";")[0]

    def code(path: str, method: str = "GET") -> int:
        body = b'{"rollout": 2}' if method == "PUT" else None
        asked = urllib.request.Request(
            f"{address}{path}", headers={"Cookie": cookie}, data=body, method=method
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code

    assert [code("/"), code("/live"), code("/status"), code("/scale", "PUT")] == [
        200,
        200,
        401,
        401,
    ]
    assert server.requests.latest.turn == 0
