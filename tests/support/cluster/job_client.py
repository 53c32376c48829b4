"""What a user does with RLJobs through the API server, and waiting for what the operator makes of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from rljob_operator.errors import Conflict, NotFound
from rljob_operator.kube.kube_client import Kube

RLJOB = ("rljob.io/v1alpha1", "RLJob")
WAIT_SECONDS = 40.0

Manifest = dict[str, Any]
T = TypeVar("T")


class Jobs:
    """The RLJobs of one namespace."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    async def get(self, name: str = "spell-backward") -> Manifest | None:
        """The job, None once it is gone."""
        try:
            return await self._kube.get(*RLJOB, self._namespace, name)
        except NotFound:
            return None

    async def change(self, name: str = "spell-backward", **spec: Any) -> Manifest:
        """Set fields of the spec; again, where the operator wrote the job's status meanwhile."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            job = await self._kube.get(*RLJOB, self._namespace, name)
            try:
                return await self._kube.replace({**job, "spec": job["spec"] | spec})
            except Conflict:
                if time.monotonic() > deadline:
                    raise

    async def until(
        self, holds: Callable[[Manifest], Any], name: str = "spell-backward"
    ) -> Manifest:
        """The job once `holds` of it. Fails with its status after a while."""

        async def found() -> Manifest | None:
            job = await self.get(name)
            return job if job is not None and holds(job) else None

        async def status() -> Any:
            job = await self.get(name)
            return None if job is None else job.get("status")

        return await _until(found, status)

    async def until_object(
        self, api_version: str, kind: str, name: str, holds: Callable[[Manifest], Any]
    ) -> Manifest:
        """An object of the namespace once `holds` of it."""

        async def there() -> Manifest:
            return await self._kube.get(api_version, kind, self._namespace, name)

        async def found() -> Manifest | None:
            manifest = await there()
            return manifest if holds(manifest) else None

        return await _until(found, there)

    async def until_events(self, reasons: list[str]) -> None:
        """Return once these are the reasons of the namespace's events, in this order."""

        async def told() -> list[str]:
            return [event["reason"] for event in await self.events()]

        async def found() -> bool:
            return await told() == reasons

        await _until(found, told)

    async def until_names(self, api_version: str, kind: str, names: list[str]) -> None:
        """Return once these are the names of the namespace's objects of a kind."""

        async def found() -> bool:
            return await self.names(api_version, kind) == names

        await _until(found, lambda: self.names(api_version, kind))

    async def events(self) -> list[Manifest]:
        """The namespace's events, oldest first."""
        found = await self._kube.list("v1", "Event", self._namespace)
        return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))

    async def names(self, api_version: str, kind: str) -> list[str]:
        """Names of the namespace's objects of a kind."""
        found = await self._kube.list(api_version, kind, self._namespace)
        return sorted(item["metadata"]["name"] for item in found)


def phase(job: Manifest) -> str:
    """The word that `kubectl get` shows."""
    return str(job.get("status", {}).get("phase", ""))


def condition(job: Manifest, kind: str) -> Manifest:
    """The condition of this type, {} where there is none."""
    found = job.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})


def running(job: Manifest) -> bool:
    """Whether its phase is Running."""
    return phase(job) == "Running"


def of_attempt(number: int) -> Callable[[Manifest], bool]:
    """Whether it runs at this attempt."""
    return lambda job: running(job) and job["status"]["attempt"] == number


def says(kind: str, value: str) -> Callable[[Manifest], bool]:
    """Whether a condition has this value."""
    return lambda manifest: condition(manifest, kind).get("status") == value


async def until(holds: Callable[[], Any]) -> None:
    """Return once `holds`."""

    async def found() -> Any:
        return holds()

    await _until(found, found)


async def _until(found: Callable[[], Awaitable[T | None]], last: Callable[[], Awaitable[Any]]) -> T:
    """What was found as soon as it is true; fails with `last` after 40 s."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        if what := await found():
            return what
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS:.0f} s: {await last()}"
        await asyncio.sleep(0.05)
