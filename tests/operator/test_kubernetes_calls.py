"""Calls to the Kubernetes API, against a server of our own that answers as told."""

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from lightkube import SingleConfig
from lightkube.config.models import Cluster, Context, User

from rljob_operator.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Permanent,
    Unavailable,
    Unreachable,
)
from rljob_operator.kube.events import event_about
from rljob_operator.kube.kube_answers import error_of_answer, merge_patch
from rljob_operator.kube.kube_client import Kube

JOB: dict[str, Any] = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {"namespace": "ns", "name": "job", "uid": "u1", "resourceVersion": "7"},
    "status": {"phase": "Running", "attempt": 1, "progress": {"step": 3, "reward": 0.5}},
}
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"namespace": "ns", "name": "token"},
    "stringData": {"auth_token": "hunter2"},
}


class ApiServer:
    """Notes requests; answers with what `answers` holds, then with the request's own body."""

    def __init__(self):
        self.requests, self.answers = [], []

    async def __call__(self, request):
        text = await request.text()
        self.requests.append((request.method, request.path, dict(request.query), text))
        self.content_type = request.headers.get("Content-Type")
        if not self.answers:
            return web.json_response(json.loads(text or "{}"))
        return self.answers.pop(0)


def refusal(code, message="no", headers=None):
    status = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    return web.json_response(status, status=code, headers=headers)


class Calls(list):
    def kube_call(self, verb, code, seconds):
        assert seconds >= 0
        self.append((verb, code))


def kube_at(url, calls, **options):
    config = SingleConfig(
        context_name="test",
        context=Context(cluster="test"),
        cluster=Cluster(server=url),
        user=User(token="operator-token"),
    )
    return Kube(metrics=calls, config=config, **options)


@pytest.fixture
def api():
    return ApiServer()


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
async def kube(api, calls):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api)
    server = TestServer(app)
    await server.start_server()
    kube = kube_at(str(server.make_url("")), calls)
    yield kube
    await kube.close()
    await server.close()


async def test_apply_is_a_server_side_apply_that_takes_fields_over(kube, api, calls):
    applied = await kube.apply(SECRET)

    ((method, path, query, text),) = api.requests
    assert (method, path) == ("PATCH", "/api/v1/namespaces/ns/secrets/token")
    assert query == {"fieldManager": "rljob-operator", "force": "true"}
    assert api.content_type == "application/apply-patch+yaml"
    assert json.loads(text) == applied == SECRET
    assert calls == [("apply", "2xx")]


async def test_status_is_patched_at_the_version_that_was_read_and_what_is_gone_is_removed(
    kube, api
):
    status = {"phase": "Running", "progress": {"step": 4}}

    await kube.patch_status(JOB, status, "7")

    ((method, path, _, text),) = api.requests
    assert (method, path) == ("PATCH", "/apis/rljob.io/v1alpha1/namespaces/ns/rljobs/job/status")
    assert api.content_type == "application/merge-patch+json"
    assert json.loads(text) == {
        "metadata": {"resourceVersion": "7"},
        "status": {"attempt": None, "progress": {"step": 4, "reward": None}},
    }


async def test_a_status_that_is_there_already_is_not_sent(kube, api):
    assert await kube.patch_status(JOB, dict(JOB["status"]), "7") is JOB
    assert api.requests == []


async def test_a_list_is_read_page_by_page_and_says_what_its_items_are(kube, api, calls):
    def page(name, more):
        return web.json_response(
            {"items": [{"metadata": {"name": name}}], "metadata": {"continue": more}}
        )

    api.answers = [page("a", "next"), page("b", "")]

    pods = await kube.list("v1", "Pod", labels={"rljob.io/job": None, "role": "head"})

    assert [pod["metadata"]["name"] for pod in pods] == ["a", "b"]
    assert {(pod["apiVersion"], pod["kind"]) for pod in pods} == {("v1", "Pod")}
    (_, path, first, _), (_, _, second, _) = api.requests
    assert path == "/api/v1/pods"
    assert first == {"limit": "500", "labelSelector": "rljob.io/job,role=head"}
    assert second["continue"] == "next"
    assert calls == [("list", "2xx")]


async def test_create_and_replace_send_the_manifest_as_it_is(kube, api):
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"namespace": "ns", "name": "l", "resourceVersion": "3"},
        "spec": {"holderIdentity": "me"},
    }

    await kube.create(lease)
    await kube.replace(lease)

    (post, put) = api.requests
    assert post[:2] == ("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases")
    assert put[:2] == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l")
    assert json.loads(post[3]) == json.loads(put[3]) == lease


async def test_deleting_what_is_gone_is_no_error(kube, api):
    api.answers = [refusal(404), web.json_response({})]

    gone = await kube.delete("v1", "Pod", "ns", "p")
    there = await kube.delete("v1", "Pod", "ns", "p", grace_seconds=0)

    assert (gone, there) == (False, True)
    assert api.requests[1][2]["gracePeriodSeconds"] == "0"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, Invalid),
        (401, Unavailable),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (418, Permanent),
        (422, Invalid),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
async def test_each_refusal_is_an_error_of_ours_that_names_the_object(
    kube, api, calls, code, error
):
    api.answers = [refusal(code, "exceeded quota"), refusal(code, "exceeded quota")]

    with pytest.raises(error, match=rf"^get Pod ns/p: {code} exceeded quota$") as caught:
        await kube.get("v1", "Pod", "ns", "p")

    assert type(caught.value) is error
    assert calls == [("get", str(code))]


async def test_a_busy_server_says_when_to_come_back_also_in_plain_text(kube, api):
    api.answers = [web.Response(status=429, text="later", headers={"Retry-After": "11"})]

    with pytest.raises(Unavailable, match="later") as caught:
        await kube.get("v1", "Pod", "ns", "p")

    assert caught.value.retry_after == 11


async def test_an_answer_without_a_content_type_is_understood_too(calls):
    async def gateway(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(gateway, "127.0.0.1", 0) as server:
        kube = kube_at(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", calls)
        with pytest.raises(Unavailable):
            await kube.get("v1", "Pod", "ns", "p")
        await kube.close()

    assert calls == [("get", "502")]


async def test_an_answer_that_is_no_json_counts_as_none(kube, api):
    api.answers = [web.Response(text="<html>")]

    with pytest.raises(Unreachable):
        await kube.get("v1", "Pod", "ns", "p")


async def test_a_server_that_never_answers_is_given_up_in_time(calls):
    async def silence(reader, writer):
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kube = kube_at(url, calls, timeout_seconds=0.05)
        with pytest.raises(Unreachable) as caught:
            await kube.apply(SECRET)
        await kube.close()

    assert caught.value.retry_after > 0
    assert calls == [("apply", "timeout")]


async def test_what_a_secret_holds_is_in_no_error_and_no_log(kube, api, caplog):
    caplog.set_level(logging.DEBUG, logger="rljob_operator")
    api.answers = [refusal(422, "stringData: Invalid value: hunter2")]

    with pytest.raises(Invalid) as caught:
        await kube.apply(SECRET)

    assert str(caught.value) == "apply Secret ns/token: 422"
    assert caught.value.__cause__ is None
    assert "hunter2" not in caplog.text


async def test_the_same_event_again_is_counted(kube, api):
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    event = event_about(JOB, type="Warning", reason="HeadLost", message="gone", timestamp=now)
    api.answers = [refusal(409), web.json_response({**event, "count": 4})]

    await kube.create_event(event)

    assert [method for method, *_ in api.requests] == ["POST", "GET", "PATCH"]
    assert json.loads(api.requests[2][3]) == {"count": 5, "lastTimestamp": "2026-01-02T03:04:05Z"}


def test_an_event_names_the_job_and_equal_news_has_an_equal_name():
    now = datetime(2026, 1, 2, tzinfo=UTC)

    one = event_about(JOB, type="Normal", reason="Started", message="x" * 3000, timestamp=now)
    same = event_about(JOB, type="Normal", reason="Started", message="x" * 3000, timestamp=now)
    other = event_about(JOB, type="Normal", reason="Started", message="y", timestamp=now)

    assert one["metadata"]["name"] == same["metadata"]["name"] != other["metadata"]["name"]
    assert one["involvedObject"]["uid"] == "u1"
    assert len(one["message"]) == 1024


def test_a_merge_patch_holds_just_the_difference():
    old = {"a": 1, "b": {"c": 1, "d": [1]}, "e": {"f": 1}, "g": None}
    new = {"a": 1, "b": {"c": 2, "d": [1]}, "h": {"i": 1}, "g": None}

    assert merge_patch(old, new) == {"b": {"c": 2}, "e": None, "h": {"i": 1}}
    assert merge_patch(new, new) == {}


def test_a_date_as_retry_after_falls_back_to_a_pause():
    error = error_of_answer(
        503, "get Pod ns/p", body="", retry_after="Wed, 21 Oct 2026 07:28:00 GMT"
    )

    assert isinstance(error, Unavailable) and error.retry_after == 2
