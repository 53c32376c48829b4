"""kopf itself, against an API server of our own: news arrive, and nothing is ever written."""

import asyncio
import json
import time

import kopf
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.watch.cache import JOB_LABEL, KINDS, Cache, JobKey
from rljob_operator.watch.informers import WATCHED, WatchAges, configure, register, watch_session

ALL_VERBS = ["get", "list", "watch", "patch", "create", "update", "delete"]
OTHERS = {
    "v1": ["namespaces", "events"],
    "apiextensions.k8s.io/v1": ["customresourcedefinitions"],
}


class ApiServer:
    """Lists one job and one pod; sends what `news` holds to whoever watches its kind."""

    def __init__(self):
        self.written, self.selectors, self.news = [], {}, {}
        self.timeouts = set()

    async def __call__(self, request):
        if request.method != "GET":
            self.written.append((request.method, request.path))
        parts = [part for part in request.path.split("/") if part]
        if parts in (["api"], ["apis"]):
            return web.json_response({"versions": ["v1"], "groups": groups()})
        if len(parts) == (2 if parts[0] == "api" else 3):
            return web.json_response({"resources": resources("/".join(parts[1:]))})
        plural = parts[-1]
        self.selectors[plural] = request.query.get("labelSelector")
        if request.query.get("watch") == "true":
            return await self.watch(request, plural)
        items = [found(plural, "1")] if plural in ("rljobs", "pods") else []
        return web.json_response({"items": items, "metadata": {"resourceVersion": "1"}})

    async def watch(self, request, plural):
        self.timeouts.add(request.query["timeoutSeconds"])
        response = web.StreamResponse()
        await response.prepare(request)
        for event in self.news.pop(plural, ()):
            await response.write(json.dumps(event).encode() + b"\n")
        await asyncio.sleep(30)
        return response


def groups():
    versions = [f"{group}/{version}" for group, version, _ in WATCHED.values() if group]
    return [
        {
            "name": version.split("/")[0],
            "preferredVersion": {"version": version.split("/")[1]},
            "versions": [{"version": version.split("/")[1]}],
        }
        for version in [*versions, "apiextensions.k8s.io/v1"]
    ]


def resources(api_version):
    ours = [
        p
        for group, version, p in WATCHED.values()
        if f"{group}/{version}".lstrip("/") == api_version
    ]
    return [
        {"name": plural, "kind": plural.title(), "singularName": plural[:-1], "verbs": ALL_VERBS,
         "namespaced": plural != "namespaces"}
        for plural in ours + OTHERS.get(api_version, [])
    ]  # fmt: skip


def found(plural, version):
    labels = {JOB_LABEL: "job"} if plural == "pods" else {}
    name = "job" if plural == "rljobs" else "pod"
    metadata = {"namespace": "ns", "name": name, "uid": plural, "resourceVersion": version}
    return {"metadata": {**metadata, "labels": labels}}


async def test_events_come_through_kopf_and_kopf_writes_nothing():
    api, cache, queue = ApiServer(), Cache(), asyncio.Queue()
    api.news = {
        "rljobs": [
            {"type": "MODIFIED", "object": {**found("rljobs", "2"), "spec": {"suspend": True}}},
            {"type": "DELETED", "object": found("rljobs", "3")},
        ]
    }
    ages, registry, settings = (
        WatchAges(time.monotonic),
        kopf.OperatorRegistry(),
        kopf.OperatorSettings(),
    )

    class Adding:
        def add(self, key, *, new=False):
            queue.put_nowait(key)

    register(registry, cache=cache, queue=Adding(), ages=ages, clock=time.monotonic)
    configure(settings)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api)
    async with TestServer(app) as server:

        @kopf.on.login(registry=registry)
        async def login(**_):
            info = kopf.ConnectionInfo(server=str(server.make_url("")).rstrip("/"), token="t")
            return watch_session(info, ages)

        stop = asyncio.Event()
        operator = asyncio.create_task(
            kopf.operator(registry=registry, settings=settings, clusterwide=True, stop_flag=stop)
        )
        try:
            async with asyncio.timeout(60):  # the job listed, changed, deleted; the pod listed
                news = [await queue.get() for _ in range(4)]
        finally:
            stop.set()
            await operator

    assert set(news) == {JobKey("ns", "job")}
    assert cache.jobs() == []
    assert len(cache.of_job("Pod", JobKey("ns", "job"))) == 1
    assert api.written == []
    assert api.selectors["pods"] == api.selectors["rayclusters"] == JOB_LABEL
    assert api.selectors["rljobs"] is None
    assert set(ages._last_active) == set(KINDS)
    assert all(seconds.isdecimal() for seconds in api.timeouts)  # others are refused
