"""Kueue's controller as far as a Workload sees it, on a real API server: it admits, queues and evicts.

Quota is a number of worker pods for all Workloads of a namespace. As Kueue does, it writes by server-side
apply with all conditions that it manages, and releases an evicted Workload's quota only when its owner does.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from api_server import ApiServer
from fake_kuberay import Api

Manifest = dict[str, Any]
MANAGER = "kueue-admission"
NOW = "2026-01-01T00:00:00Z"
NO_QUOTA = "couldn't assign flavors to pod set worker: insufficient unused quota"


class FakeKueue:
    """workers: the quota. flavor: of all pods. checks: admission checks that are met at once, with what they
    add to pods. most: how many worker pods were ever admitted at once."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        *,
        workers: int,
        flavor: str,
        checks: tuple[Manifest, ...] = (),
    ) -> None:
        self.workers, self.flavor, self.checks, self.most = workers, flavor, checks, 0
        self._path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads"
        self._api = Api(server)
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> "FakeKueue":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task  # an error of its own fails the test
        await self._api.close()

    async def get(self, name: str) -> Manifest:
        """The Workload."""
        found: Manifest = await self._api("GET", f"{self._path}/{name}")
        return found

    async def grow(self, workers: int) -> None:
        """The quota is another one."""
        self.workers = workers
        await self._look()

    async def evict(self, name: str, *, reason: str = "Preempted", message: str) -> None:
        """Take the quota back, which the owner gives."""
        async with self._lock:
            await self._change(await self.get(name), lambda found: _evicted(found, reason, message))

    async def _run(self) -> None:
        async for _ in self._events():
            await self._look()

    async def _events(self) -> AsyncIterator[str]:
        async for kind, _ in self._api.watch(self._path):
            yield kind

    async def _look(self) -> None:
        async with self._lock:
            found = (await self._api("GET", self._path))["items"]
            found = [w for w in found if not _holds(w, "Finished")]
            for workload in sorted(filter(_waits, found), key=_place):
                free = self.workers - sum(map(_used, found))
                (pods,) = [s for s in workload["spec"]["podSets"] if s["name"] == "worker"]
                count = min(pods["count"], max(free, pods.get("minCount", pods["count"])))
                if count <= free:
                    self.most = max(self.most, self.workers - free + count)
                    await self._change(workload, functools.partial(self._admitted, workers=count))
                    return  # the event of it comes back here
                await self._refuse(workload, found)

    async def _refuse(self, workload: Manifest, others: list[Manifest]) -> None:
        """Say why it waits, and take back what others of less priority have."""
        await self._change(workload, _refused)
        mine = workload["spec"].get("priority", 0)
        for other in others:
            evictable = _used(other) and not _holds(other, "Evicted")
            if evictable and other["spec"].get("priority", 0) < mine:
                await self._change(other, lambda w: _evicted(w, "Preempted", "for more priority"))

    def _admitted(self, workload: Manifest, workers: int) -> Manifest:
        assignments = [
            {
                "name": pods["name"],
                "flavors": {"cpu": self.flavor},
                "count": workers if pods["name"] == "worker" else pods["count"],
            }
            for pods in workload["spec"]["podSets"]
        ]
        status = _with(
            workload["status"], "QuotaReserved", "True", "QuotaReserved", "reserved in all"
        )
        status = _with(status, "Admitted", "True", "Admitted", "The workload is admitted")
        if _holds(workload, "Evicted"):
            status = _with(status, "Evicted", "False", "QuotaReserved", "Previously evicted")
        admission = {"clusterQueue": "all", "podSetAssignments": assignments}
        return {**status, "admission": admission, "admissionChecks": list(self.checks)}

    async def _change(self, workload: Manifest, change: Callable[[Manifest], Manifest]) -> None:
        """Apply the changed status, of the version that is there."""
        name = workload["metadata"]["name"]
        while True:
            before = {**workload, "status": workload.get("status", {})}
            status = change(before)
            if status == before["status"]:
                return
            body = {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {
                    "name": name,
                    "resourceVersion": workload["metadata"]["resourceVersion"],
                },
                "status": {k: v for k, v in status.items() if k != "reclaimablePods"},
            }
            if await self._api.apply_status(f"{self._path}/{name}", body, manager=MANAGER):
                return
            again = await self._api("GET", f"{self._path}/{name}")
            if again is None:
                return
            workload = again


def _evicted(workload: Manifest, reason: str, message: str) -> Manifest:
    return _with(workload["status"], "Evicted", "True", reason, message)


def _refused(workload: Manifest) -> Manifest:
    return _with(workload["status"], "QuotaReserved", "False", "Pending", NO_QUOTA)


def _waits(workload: Manifest) -> bool:
    active = workload["spec"].get("active", True)
    return (
        active
        and not _holds(workload, "QuotaReserved")
        and "deletionTimestamp" not in workload["metadata"]
    )


def _used(workload: Manifest) -> int:
    """Worker pods that it has quota for."""
    status = workload.get("status", {})
    assigned = (status.get("admission") or {}).get("podSetAssignments", [])
    admitted = sum(pods["count"] for pods in assigned if pods["name"] == "worker")
    asked = sum(s["count"] for s in workload["spec"]["podSets"] if s["name"] == "worker")
    back = sum(pods["count"] for pods in status.get("reclaimablePods", []))
    return int(min(admitted, asked - back))


def _place(workload: Manifest) -> tuple[int, str, str]:
    metadata = workload["metadata"]
    return -workload["spec"].get("priority", 0), metadata["creationTimestamp"], metadata["uid"]


def _holds(workload: Manifest, kind: str) -> bool:
    found = workload.get("status", {}).get("conditions", [])
    return any(c["type"] == kind and c["status"] == "True" for c in found)


def _with(status: Manifest, kind: str, value: str, reason: str, message: str) -> Manifest:
    others = [c for c in status.get("conditions", []) if c["type"] != kind]
    new = {"type": kind, "status": value, "reason": reason, "message": message}
    before: Manifest = next((c for c in status.get("conditions", []) if c["type"] == kind), {})
    if new.items() <= before.items():
        return status
    return {**status, "conditions": [*others, {**new, "lastTransitionTime": NOW}]}
