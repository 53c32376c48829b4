"""Ray's Jobs API and the drivers' progress in memory, in the place of aiohttp's session."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from pauses import Pauses

Manifest = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class MemoryDriver:
    """One started submission. asked: how often the operator asked for it."""

    submission: str
    cluster: str
    status: str = "RUNNING"
    asked: int = 0

    @property
    def lives(self) -> bool:
        return self.status == "RUNNING"


@dataclass(slots=True)
class MemoryRay:
    """Stands for aiohttp's session. answers: whether it does. lose_answers: how many submissions'
    answers never arrive. scaled: the rollout devices that drivers were told; the first time is refused.
    asked_for_stacks: clusters whose drivers were. asked_to_save: how often; the first time is refused."""

    pauses: Pauses
    heads: set[str] = field(default_factory=set)
    drivers: list[MemoryDriver] = field(default_factory=list)
    report: Manifest = field(default_factory=dict)
    lose_answers: int = 0
    scaled: list[int] = field(default_factory=list)
    answers: bool = True
    asked_for_stacks: list[str] = field(default_factory=list)
    asked_to_save: int = 0

    def copy(self, pauses: Pauses) -> "MemoryRay":
        drivers = [replace(driver) for driver in self.drivers]
        return replace(
            self,
            pauses=pauses,
            heads=set(self.heads),
            drivers=drivers,
            scaled=list(self.scaled),
            asked_for_stacks=list(self.asked_for_stacks),
        )

    def request(self, method: str, url: str, **options: Any) -> "Exchange":
        return Exchange(self, method, url, options)

    def get(self, url: str, **options: Any) -> "Exchange":
        return self.request("GET", url, **options)

    def put(self, url: str, **options: Any) -> "Exchange":
        return self.request("PUT", url, **options)

    def post(self, url: str, **options: Any) -> "Exchange":
        return self.request("POST", url, **options)

    def end_head(self, cluster: str) -> None:
        """The head is gone, and its drivers with it."""
        self.heads.discard(cluster)
        for driver in self.drivers:
            if driver.cluster == cluster and driver.lives:
                driver.status = "FAILED"

    def answer(self, method: str, url: str, options: Manifest) -> tuple[int, Any]:
        """Status code and body. url: http://CLUSTER:PORT/PATH."""
        cluster, _, path = url.removeprefix("http://").partition("/")
        cluster = cluster.partition(":")[0]
        if cluster not in self.heads or not self.answers:
            return 502, "no such head"
        if path == "status":
            return 200, self.report
        if path == "scale":
            self.scaled.append(options["json"]["rollout"])
            return (409, "not now") if len(self.scaled) == 1 else (202, "")
        if path == "checkpoint":
            self.asked_to_save += 1
            return {1: (404, "no such path"), 2: (0, None)}.get(self.asked_to_save, (202, ""))
        if path == "stacks":
            self.asked_for_stacks.append(cluster)
            return 200, {"told": "missing: device-1"}
        if path.startswith("api/v0/logs"):
            return 200, "the last words\n"
        known = {d.submission: d for d in self.drivers if d.cluster == cluster}
        if path == "api/jobs/":
            return self._submit(options["json"]["submission_id"], cluster, known)
        found = known.get(path.split("/")[2])
        if found is None:
            return 404, "no such job"
        found.asked += 1
        if method == "POST":  # /stop
            found.status = "STOPPED" if found.lives else found.status
        code = 1 if found.status == "FAILED" else None
        return 200, {"status": found.status, "driver_exit_code": code, "driver_node_id": "n"}

    def _submit(
        self, submission: str, cluster: str, known: dict[str, MemoryDriver]
    ) -> tuple[int, Any]:
        if submission in known:
            return 500, f"ValueError: {submission} already exists."
        self.drivers.append(MemoryDriver(submission=submission, cluster=cluster))
        if self.lose_answers:
            self.lose_answers -= 1
            return 0, None
        return 200, {"submission_id": submission}


@dataclass(slots=True)
class Exchange:
    """What aiohttp's request returns: to be entered, left, and read in between."""

    ray: MemoryRay
    method: str
    url: str
    options: Manifest
    status: int = 0
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    async def __aenter__(self) -> "Exchange":
        writes = self.method != "GET"
        await self.ray.pauses(writes=writes)
        self.status, self.body = self.ray.answer(self.method, self.url, self.options)
        await self.ray.pauses(writes=writes)
        if not self.status:
            raise aiohttp.ClientConnectionError
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ray.pauses()

    @property
    def content(self) -> "Exchange":
        return self

    async def iter_any(self) -> AsyncIterator[bytes]:
        await self.ray.pauses()
        yield (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()

    def close(self) -> None:
        """The rest is not read."""
