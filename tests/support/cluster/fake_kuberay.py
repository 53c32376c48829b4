"""KubeRay, kubelet and garbage collector at once, as far as the operator sees them, on a real API server.

It watches RayClusters: makes their pods, calls them ready, and starts heads in `FakeRay`. What belongs to
a deleted RayCluster or RLJob goes with it.
"""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import aiohttp
from api_server import ADMIN, ApiServer
from fake_ray import FakeRay

Manifest = dict[str, Any]
RAYCLUSTERS = "/apis/ray.io/v1"
RLJOBS = "/apis/rljob.io/v1alpha1"
AT_ONCE = 24  # clusters that are worked on at the same time
NOW = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


class Api:
    """Plain requests as administrator. writes: how many changed something."""

    def __init__(self, server: ApiServer) -> None:
        self._url = server.url
        tls = ssl.create_default_context(cafile=str(server.ca))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64, ssl=tls),
            headers={"Authorization": f"Bearer {ADMIN}"},
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        await self._session.close()

    async def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """What was asked for; None for writes, for 404 and for what exists already."""
        if method == "PATCH":
            options["headers"] = {"Content-Type": "application/merge-patch+json"}
        for _ in range(100):
            async with self._session.request(
                method, self._url + path, json=body, **options
            ) as answer:
                if answer.status in (404, 409):
                    return None
                if answer.status != 429:
                    assert answer.status < 300, f"{method} {path}: {await answer.text()}"
                    return await answer.json() if method == "GET" else None
            await asyncio.sleep(0.1)  # the kind's definition has just changed
        raise AssertionError(f"{method} {path}: 429, a hundred times")

    async def apply_status(self, path: str, manifest: Manifest, *, manager: str) -> bool:
        """Server-side apply of a status, by force; False where the object is another version by now."""
        async with self._session.patch(
            f"{self._url}{path}/status",
            json=manifest,
            params={"fieldManager": manager, "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
        ) as answer:
            assert answer.status in (200, 404, 409), f"{path}: {await answer.text()}"
            return answer.status == 200

    async def text(self, url: str) -> str:
        """What another server answers with 200, "" where it does not."""
        try:
            async with self._session.get(url, headers={"Authorization": ""}) as answer:
                return await answer.text() if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    async def watch(self, path: str, *, kind: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """What is there (as ADDED), then every event. kind: "PartialObjectMetadata" leaves out the rest."""
        accept = {"Accept": f"application/json{f';as={kind};g=meta.k8s.io;v=v1' if kind else ''}"}
        listed = {"Accept": accept["Accept"].replace("Metadata;", "MetadataList;")}
        found = await self("GET", path, headers=listed)
        for item in found["items"] or []:
            yield "ADDED", item
        version = found["metadata"]["resourceVersion"]
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600"}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(
            self._url + path, params=query, timeout=timeout, headers=accept
        ) as answer:
            async for line in answer.content:
                event = json.loads(line)
                yield event["type"], event["object"]


class FakeKubeRay:
    """seen: each RayCluster, and when it was first seen (monotonic seconds). places: whether worker pods have
    a node from the beginning; else the test is their scheduler (`place`, `refuse`)."""

    def __init__(self, server: ApiServer, ray: FakeRay) -> None:
        self.places = True
        self.seen: dict[str, float] = {}
        self._server, self._ray = server, ray
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        self._known: set[str] = set()  # clusters that have pods
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> "FakeKubeRay":
        self.api = Api(self._server)
        self._start(self._watch_clusters())
        self._start(self._watch_jobs())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.api.close()
        if self._failed.done():
            self._failed.result()  # what broke in here must not go unseen

    async def restart_head(self, namespace: str, cluster: str) -> None:
        """The head's container restarts in place: same pod, one restart more, no job known."""
        path = f"/api/v1/namespaces/{namespace}/pods/{cluster}-head"
        pod = await self.api("GET", path)
        pod["status"]["containerStatuses"][0]["restartCount"] += 1
        kinds = f"{RAYCLUSTERS}/namespaces/{namespace}/rayclusters"
        token = await self._token(await self.api("GET", f"{kinds}/{cluster}"))
        self._ray.start_head((namespace, cluster), token)
        await self.api("PATCH", path + "/status", {"status": pod["status"]})

    async def place(self, namespace: str, pod: str, *, since: str | None = None) -> None:
        """The scheduler finds a node for a worker pod, and the kubelet starts it. since: when that was."""
        path, target = f"{_pods(namespace)}/{pod}", {"kind": "Node", "name": "a-node"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}}
        await self.api("POST", f"{path}/binding", {**binding, "target": target})
        status = _running("ray-worker")
        status["conditions"][0]["lastTransitionTime"] = since
        await self.api("PATCH", f"{path}/status", {"status": status})

    async def refuse(self, namespace: str, pod: str, *, since: str) -> None:
        """The scheduler finds no node for a worker pod, and said so first at `since`."""
        refused = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient huawei.com/Ascend910.",
            "lastTransitionTime": since,
        }
        status = {"phase": "Pending", "conditions": [refused]}
        await self.api("PATCH", f"{_pods(namespace)}/{pod}/status", {"status": status})

    async def replace_deleted_pods(self, namespace: str, cluster: str) -> list[Manifest]:
        """The kubelet ends pods that are to go, and KubeRay makes others; the pods that ended."""
        found = await self.api("GET", _pods(namespace), params=_of(cluster))
        gone = [pod for pod in found["items"] if "deletionTimestamp" in pod["metadata"]]
        for pod in gone:
            await self.api("DELETE", f"{_pods(namespace)}/{pod['metadata']['name']}", NOW)
        kinds = f"{RAYCLUSTERS}/namespaces/{namespace}/rayclusters"
        await self._keep(await self.api("GET", f"{kinds}/{cluster}"))
        return gone

    async def _watch_clusters(self) -> None:
        async for kind, cluster in self.api.watch(f"{RAYCLUSTERS}/rayclusters"):
            self.seen.setdefault(cluster["metadata"]["name"], time.monotonic())
            self._start(self._delete(cluster) if kind == "DELETED" else self._keep(cluster))

    async def _watch_jobs(self) -> None:
        jobs = self.api.watch(f"{RLJOBS}/rljobs", kind="PartialObjectMetadata")
        async for kind, job in jobs:
            if kind == "DELETED":
                self._start(self._collect(job))

    async def _keep(self, cluster: Manifest) -> None:
        """Make what pods the RayCluster lacks, remove what it has too many."""
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        async with self._lock(cluster), self._slots:
            wanted = _wanted(cluster)
            present = set()
            if (uid := cluster["metadata"]["uid"]) in self._known:
                pods = await self.api("GET", _pods(namespace), params=_of(name))
                present = {pod["metadata"]["name"] for pod in pods["items"]}
            self._known.add(uid)
            for pod in present - wanted.keys():
                await self.api("DELETE", f"{_pods(namespace)}/{pod}", NOW)
            for pod in sorted(wanted.keys() - present):
                await self._make(wanted[pod], cluster)

    async def _make(self, pod: Manifest, cluster: Manifest) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        waits = not self.places and pod["metadata"]["labels"]["ray.io/group"] == "worker"
        if waits:
            del pod["spec"]["nodeName"]
        await self.api("POST", _pods(namespace), pod)
        if waits:
            return
        if pod["metadata"]["labels"]["ray.io/node-type"] == "head":
            place = (namespace, cluster["metadata"]["name"])
            self._ray.start_head(place, await self._token(cluster))
        status = _running(pod["spec"]["containers"][0]["name"])
        await self.api("PATCH", f"{_pods(namespace)}/{name}/status", {"status": status})

    async def _token(self, cluster: Manifest) -> str:
        """As a head reads it from the Secret that the RayCluster names; somebody else's may name none."""
        if "authOptions" not in cluster["spec"]:
            return ""
        namespace = cluster["metadata"]["namespace"]
        secret = cluster["spec"]["authOptions"]["secretName"]
        secret = await self.api("GET", f"/api/v1/namespaces/{namespace}/secrets/{secret}")
        return base64.b64decode(secret["data"]["auth_token"]).decode()

    async def _delete(self, cluster: Manifest) -> None:
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        async with self._lock(cluster):
            self._ray.end_head((namespace, name))
            pods = await self.api("GET", _pods(namespace), params=_of(name))
            for pod in pods["items"]:
                await self.api("DELETE", f"{_pods(namespace)}/{pod['metadata']['name']}", NOW)

    async def _collect(self, job: Manifest) -> None:
        """What the garbage collector does with the children of a job that is gone."""
        uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
        query = {"labelSelector": f"rljob.io/job-uid={uid}"}
        kinds = f"{RAYCLUSTERS}/namespaces/{namespace}/rayclusters"
        found = await self.api("GET", kinds, params=query)
        for cluster in found["items"]:
            await self.api("DELETE", f"{kinds}/{cluster['metadata']['name']}", NOW)

    def _lock(self, cluster: Manifest) -> asyncio.Lock:
        return self._locks.setdefault(cluster["metadata"]["uid"], asyncio.Lock())

    def _start(self, part: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(part)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() and not self._failed.done():
            self._failed.set_exception(task.exception())  # type: ignore[arg-type]


def _wanted(cluster: Manifest) -> dict[str, Manifest]:
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    head = spec["headGroupSpec"]["template"]
    wanted = [(f"{name}-head", "head", "headgroup", head)]
    for group in spec["workerGroupSpecs"]:
        for number in range(group["replicas"]):
            pod = f"{name}-{group['groupName']}-{number}"
            wanted.append((pod, "worker", group["groupName"], group["template"]))
    return {
        pod: _pod(pod, cluster, node_type=node_type, group=group, template=template)
        for pod, node_type, group, template in wanted
    }


def _pod(
    name: str, cluster: Manifest, *, node_type: str, group: str, template: Manifest
) -> Manifest:
    meta = cluster["metadata"]
    ray = {"ray.io/cluster": meta["name"], "ray.io/node-type": node_type, "ray.io/group": group}
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": template["metadata"].get("labels", {}) | ray,
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [owner],
        },
        "spec": {**template["spec"], "nodeName": "a-node"},
    }


def _running(container: str) -> Manifest:
    ready = {"ready": True, "restartCount": 0, "image": "", "imageID": "", "name": container}
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")],
        "containerStatuses": [ready],
    }


def _pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def _of(cluster: str) -> dict[str, str]:
    return {"labelSelector": f"ray.io/cluster={cluster}"}
