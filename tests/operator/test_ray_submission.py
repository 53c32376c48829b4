"""Ray's Jobs API, against a dashboard of our own that can lose answers."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.driver import ray_jobs
from rljob_operator.driver.ray_jobs import RayJobs, RayJobStatus, SubmissionResult
from rljob_operator.errors import Invalid, Unauthorized, Unavailable, Unreachable

TRACEBACK = "Traceback (most recent call last):\n  File ...\n"


class Dashboard:
    """Ray's rules for submissions. lose: the next answers to a POST that never arrive."""

    def __init__(self):
        self.jobs, self.submissions, self.headers = {}, 0, None
        self.lose, self.swallow, self.refuse = 0, 0, None
        self.log_query = None
        self.text = "".join(f"line {n}\n" for n in range(20_000))

    def routes(self):
        return [
            web.post("/api/jobs/", self.submit),
            web.get("/api/jobs/{id}", self.show),
            web.post("/api/jobs/{id}/stop", self.stop),
            web.delete("/api/jobs/{id}", self.delete),
            web.get("/api/v0/logs/file", self.log),
        ]

    async def submit(self, request):
        self.headers = request.headers
        if self.refuse is not None:
            return self.refuse
        if self.swallow:  # the request is lost on its way
            self.swallow -= 1
            request.transport.abort()
            return web.Response()
        body = await request.json()
        if body["submission_id"] in self.jobs:
            text = (
                TRACEBACK
                + f"ValueError: Job with submission_id {body['submission_id']} already exists."
            )
            return web.Response(status=500, text=text)
        self.submissions += 1
        self.jobs[body["submission_id"]] = {"status": "PENDING", **body}
        if self.lose:
            self.lose -= 1
            request.transport.abort()
        return web.json_response({"submission_id": body["submission_id"]})

    async def show(self, request):
        job = self.jobs.get(request.match_info["id"])
        return web.json_response(job) if job else web.Response(status=404, text="no such job")

    async def stop(self, request):
        if request.match_info["id"] not in self.jobs:
            return web.Response(status=404)
        self.jobs[request.match_info["id"]]["status"] = "STOPPED"
        return web.json_response({"stopped": True})

    async def delete(self, request):
        found = self.jobs.pop(request.match_info["id"], None)
        return web.json_response({"deleted": True}) if found else web.Response(status=404)

    async def log(self, request):
        self.log_query = dict(request.query)
        return web.Response(text=self.text)


class Calls(list):
    def ray_call(self, verb, code, seconds):
        self.append((verb, code))


@pytest.fixture
def dashboard():
    return Dashboard()


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
async def ray(dashboard, calls):
    app = web.Application()
    app.add_routes(dashboard.routes())
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession() as session:
        url = str(server.make_url("")).rstrip("/")
        yield RayJobs(url=url, token="s3cret", session=session, metrics=calls)
    await server.close()


async def test_a_submission_carries_token_entrypoint_and_environment(ray, dashboard, calls):
    how = await ray.submit("u1-0", entrypoint="rljob run x", env={"ATTEMPT": "0"})

    assert how is SubmissionResult.NOW
    assert dashboard.headers["Authorization"] == "Bearer s3cret"
    assert dashboard.jobs["u1-0"] == {
        "status": "PENDING",
        "submission_id": "u1-0",
        "entrypoint": "rljob run x",
        "runtime_env": {"env_vars": {"ATTEMPT": "0"}},
        "metadata": {},
    }
    assert calls == [("submit", "200")]


async def test_submitting_the_same_id_again_starts_nothing(ray, dashboard):
    await ray.submit("u1-0", entrypoint="x")

    how = await ray.submit("u1-0", entrypoint="x")

    assert how is SubmissionResult.EARLIER
    assert dashboard.submissions == 1


async def test_a_submission_whose_answer_was_lost_is_found_by_asking(ray, dashboard, calls):
    dashboard.lose = 1

    how = await ray.submit("u1-0", entrypoint="x")

    assert how is SubmissionResult.EARLIER
    assert dashboard.submissions == 1
    assert calls == [("submit", "no_answer"), ("status", "200")]


async def test_a_submission_that_was_lost_itself_can_be_repeated(ray, dashboard):
    dashboard.swallow = 1

    with pytest.raises(Unreachable):
        await ray.submit("u1-0", entrypoint="x")
    how = await ray.submit("u1-0", entrypoint="x")

    assert how is SubmissionResult.NOW
    assert dashboard.submissions == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, Invalid), (401, Unauthorized), (403, Unauthorized), (503, Unavailable)],
)
async def test_a_refused_submission_says_why_in_one_line(ray, dashboard, code, error):
    dashboard.refuse = web.Response(status=code, text=TRACEBACK + "ValueError: bad entrypoint\n")

    with pytest.raises(
        error, match=f"^Ray answered submit with {code}: ValueError: bad entrypoint$"
    ):
        await ray.submit("u1-0", entrypoint="x")


async def test_each_state_of_a_job_is_told_apart_and_an_unknown_job_is_none(ray, dashboard):
    for status in RayJobStatus:
        dashboard.jobs["a"] = {"status": status.value, "driver_exit_code": 3, "message": "m" * 9999}
        assert await ray.status("a") is status

    job = await ray.job("a")

    assert (job.exit_code, len(job.message)) == (3, 500)
    assert await ray.status("b") is None
    assert [s for s in RayJobStatus if s.is_final] == ["STOPPED", "SUCCEEDED", "FAILED"]


async def test_stopping_and_deleting_say_whether_there_was_a_job(ray, dashboard):
    await ray.submit("a", entrypoint="x")

    assert await ray.stop("a")
    assert dashboard.jobs["a"]["status"] == "STOPPED"
    assert await ray.delete("a")
    assert not await ray.stop("a")
    assert not await ray.delete("a")


async def test_the_log_tail_asks_for_lines_of_the_node_that_runs_the_driver(ray, dashboard):
    dashboard.jobs["a"] = {"status": "RUNNING", "driver_node_id": "n1"}

    tail = await ray.log_tail("a", lines=2)

    assert tail == "line 19998\nline 19999"
    assert dashboard.log_query["node_id"] == "n1"
    assert dashboard.log_query["lines"] == "400"


async def test_what_ray_prints_of_a_lost_node_does_not_hide_the_drivers_last_words(ray, dashboard):
    dashboard.jobs["a"] = {"status": "FAILED", "driver_node_id": "n1"}
    noise = [
        "(raylet) Raylet is terminated. Termination is unexpected. Last 20 lines of its log:",
        *["    [state-dump] \tNodeManager.ScheduleAndGrantLeases - 172 total (0 active)"] * 300,
        "    [2026-11-21 18:37:12,164 I 19 19] (raylet) node_manager.cc:2245: Drain raylet",
    ]
    dashboard.text = "\n".join(
        ["step 104/500", "failed: a worker vanished", *noise, "next: resume"]
    )

    assert await ray.log_tail("a", lines=2) == "failed: a worker vanished\nnext: resume"


async def test_a_job_without_a_driver_has_no_log_yet(ray, dashboard):
    dashboard.jobs["a"] = {"status": "PENDING"}

    assert await ray.log_tail("a", lines=2) == ""
    assert await ray.log_tail("unknown", lines=2) == ""


async def test_a_head_that_hangs_or_is_not_there_is_unreachable(ray, dashboard, calls, monkeypatch):
    monkeypatch.setattr(ray_jobs, "TOTAL_SECONDS", 0.05)
    nowhere = RayJobs(url="http://127.0.0.1:9", token="t", session=ray.session, metrics=calls)

    async def hang(request):
        await asyncio.sleep(1)

    app = web.Application()
    app.add_routes([web.get("/api/jobs/{id}", hang)])
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        slow = RayJobs(url=url, token="t", session=ray.session, metrics=calls)
        with pytest.raises(Unreachable):
            await slow.status("a")
    with pytest.raises(Unreachable):
        await nowhere.status("a")

    assert calls == [("status", "no_answer")] * 2


def test_the_token_is_not_shown_where_the_client_is_printed():
    client = RayJobs(url="http://x", token="s3cret", session=None, metrics=None)

    assert "s3cret" not in repr(client)
