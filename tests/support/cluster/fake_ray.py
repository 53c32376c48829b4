"""Ray's Jobs API and the drivers' progress for any number of clusters, at one address.

`FakeKubeRay` or a test starts and ends heads; a submission makes a driver, which runs until somebody
ends it. Every driver that ever was stays in `drivers`, for tests to count.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

FINAL = ("SUCCEEDED", "FAILED", "STOPPED")
TRACEBACK = "Traceback (most recent call last):\n  File ...\n"
Place = tuple[str, str]  # namespace, name of the RayCluster


@dataclass(slots=True, kw_only=True)
class Driver:
    """One started submission. status: Ray's word. report: what the driver says of itself. saved: how often
    it was told to."""

    submission: str
    place: Place
    entrypoint: str
    status: str = "RUNNING"
    exit_code: int | None = None
    log: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    saved: int = 0

    @property
    def lives(self) -> bool:
        return self.status not in FINAL


class FakeRay:
    """A server on a free port of this machine. stop_ends: whether a stopped driver ends at once."""

    def __init__(self, *, stop_ends: bool = True) -> None:
        self.drivers: list[Driver] = []
        self.requests = 0
        self.on_submit: Callable[[Driver], None] = lambda driver: None
        self._stop_ends = stop_ends
        self._heads: dict[Place, tuple[str, dict[str, Driver]]] = {}  # token, its jobs

    async def __aenter__(self) -> "FakeRay":
        app = web.Application()
        jobs = "/{namespace}/{cluster}/8265/api"
        app.add_routes(
            [
                web.post(f"{jobs}/jobs/", self._submit),
                web.get(f"{jobs}/jobs/{{id}}", self._show),
                web.post(f"{jobs}/jobs/{{id}}/stop", self._stop),
                web.get(f"{jobs}/v0/logs/file", self._log),
                web.get("/{namespace}/{cluster}/8266/status", self._report),
                web.post("/{namespace}/{cluster}/8266/checkpoint", self._save),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    def head_url(self, cluster: str, namespace: str, port: int) -> str:
        """What the operator is told instead of a DNS name."""
        return f"http://127.0.0.1:{self._port}/{namespace}/{cluster}/{port}"

    def start_head(self, place: Place, token: str) -> None:
        """A head that knows no job yet, also where one was before: its drivers are dead."""
        self.end_head(place)
        self._heads[place] = (token, {})

    def end_head(self, place: Place) -> None:
        """The head dies, and with it its drivers."""
        self._heads.pop(place, None)
        for driver in self.drivers:
            if driver.place == place and driver.lives:
                driver.status = "FAILED"

    def live(self, namespace: str) -> list[Driver]:
        """Drivers of a namespace that have not ended."""
        return [d for d in self.drivers if d.lives and d.place[0] == namespace]

    def of(self, namespace: str) -> list[Driver]:
        """All drivers that a namespace ever had."""
        return [d for d in self.drivers if d.place[0] == namespace]

    async def _submit(self, request: web.Request) -> web.Response:
        place, jobs = self._jobs(request)
        body = await request.json()
        if body["submission_id"] in jobs:
            text = f"{TRACEBACK}ValueError: {body['submission_id']} already exists."
            return web.Response(status=500, text=text)
        driver = Driver(
            submission=body["submission_id"], place=place, entrypoint=body["entrypoint"]
        )
        jobs[driver.submission] = driver
        self.drivers.append(driver)
        self.on_submit(driver)
        return web.json_response({"submission_id": driver.submission})

    async def _show(self, request: web.Request) -> web.Response:
        driver = self._driver(request)
        return web.json_response(
            {"status": driver.status, "driver_exit_code": driver.exit_code, "driver_node_id": "n1"}
        )

    async def _stop(self, request: web.Request) -> web.Response:
        driver = self._driver(request)
        if driver.lives and self._stop_ends:
            driver.status = "STOPPED"
        return web.json_response({"stopped": True})

    async def _log(self, request: web.Request) -> web.Response:
        _, jobs = self._jobs(request)
        return web.Response(text=jobs[request.query["submission_id"]].log)

    async def _report(self, request: web.Request) -> web.Response:
        _, jobs = self._jobs(request)
        running = [driver for driver in jobs.values() if driver.lives]
        return web.json_response(running[-1].report if running else {})

    async def _save(self, request: web.Request) -> web.Response:
        """A checkpoint of the steps that are done is there at once."""
        _, jobs = self._jobs(request)
        driver = [driver for driver in jobs.values() if driver.lives][-1]
        saved = {"step": driver.report["progress"]["step"], "path": "/c"}
        driver.report["checkpoint"] = saved | {"time": "2026-01-01T00:00:00Z"}
        driver.saved += 1
        return web.Response(status=202)

    def _jobs(self, request: web.Request) -> tuple[Place, dict[str, Driver]]:
        self.requests += 1
        place = (request.match_info["namespace"], request.match_info["cluster"])
        if place not in self._heads:
            raise web.HTTPBadGateway(text="no such head")
        token, jobs = self._heads[place]
        if request.headers.get("Authorization") != f"Bearer {token}":
            raise web.HTTPUnauthorized()
        return place, jobs

    def _driver(self, request: web.Request) -> Driver:
        _, jobs = self._jobs(request)
        if request.match_info["id"] not in jobs:
            raise web.HTTPNotFound()
        return jobs[request.match_info["id"]]
