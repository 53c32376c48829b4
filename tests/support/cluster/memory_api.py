"""A Kubernetes API in memory, for code that must be stopped at any of its awaits."""

import copy
import json
from collections.abc import Callable
from typing import Any

import httpx2
from pauses import Pauses

Manifest = dict[str, Any]


class Door(httpx2.AsyncBaseTransport):
    """Leads to the API of the present test: a client costs more to make than a whole test."""

    api: "MemoryApi"

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self.api.handle(request)


class MemoryApi:
    """Objects by path, as lightkube asks for them. now: the test's time as Kubernetes writes it."""

    def __init__(self, pauses: Pauses, now: Callable[[], str]) -> None:
        self.objects: dict[str, Manifest] = {}
        self._pauses, self._now, self._version = pauses, now, 0

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(await request.aread() or "null")
        writes = request.method != "GET"
        await self._pauses(writes=writes)
        code, answer = self._answer(request, body)
        await self._pauses(writes=writes)
        return httpx2.Response(code, json=answer, request=request)

    def copy(self, pauses: Pauses, now: Callable[[], str]) -> "MemoryApi":
        """The same objects, which are never changed in place."""
        other = MemoryApi(pauses, now)
        other.objects, other._version = dict(self.objects), self._version
        return other

    def stored(self, kind: str) -> list[Manifest]:
        """All objects of a kind."""
        return [found for found in self.objects.values() if found["kind"] == kind]

    def write(self, path: str, manifest: Manifest) -> Manifest:
        """Store it as the next version; the same contents are no new version."""
        before = self.objects.get(path)
        if before is not None and before == manifest:
            return before
        self._version += 1
        meta: dict[str, Any] = {
            "uid": f"{self._version:08d}-uid",
            "creationTimestamp": self._now(),
            "generation": 1,
        }
        meta |= manifest["metadata"]
        if before is not None and before.get("spec") != manifest.get("spec"):
            meta["generation"] += 1
        meta["resourceVersion"] = str(self._version)
        self.objects[path] = {**manifest, "metadata": meta}
        return self.objects[path]

    def _answer(self, request: httpx2.Request, body: Any) -> tuple[int, Any]:
        path, kind = request.url.path, request.headers.get("Content-Type", "")
        subresource = path.endswith("/status")
        path = path.removesuffix("/status")
        if request.method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            return (409, _refusal(409)) if path in self.objects else (201, self.write(path, body))
        before = self.objects.get(path)
        asked = request.url.params.get("uid") or (body or {}).get("metadata", {}).get("uid")
        if before is not None and asked not in (None, before["metadata"]["uid"]):
            return 409, _refusal(409)
        if request.method == "PATCH" and "apply" in kind:
            return 200, self.write(path, _merged(before or {}, body))
        if before is None:
            return 404, _refusal(404)
        if request.method == "GET":
            return 200, before
        if request.method == "DELETE":
            return 200, self.objects.pop(path)
        version = body.get("metadata", {}).get(
            "resourceVersion", before["metadata"]["resourceVersion"]
        )
        if version != before["metadata"]["resourceVersion"]:
            return 409, _refusal(409)
        if subresource:
            body = {"status": body["status"]}
        return 200, self.write(path, _merged(before, body))


def _merged(before: Manifest, patch: Manifest) -> Manifest:
    """RFC 7396."""
    after = dict(before)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, dict):
            old = after.get(key)
            after[key] = _merged(old if isinstance(old, dict) else {}, value)
        else:
            after[key] = copy.deepcopy(value)
    return after


def _refusal(code: int) -> Manifest:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "no",
        "code": code,
    }
