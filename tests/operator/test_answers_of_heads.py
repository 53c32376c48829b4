"""What a job's head answers is bounded: a tenant's code runs there, and one operator serves all tenants."""

import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_operator.driver.answers import MAX_BYTES, SHOWN_CHARACTERS
from rljob_operator.driver.progress import ask_driver, ask_stacks, scale_driver
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.errors import Invalid, Unreachable

BOMB = gzip.compress(b'{"status": "RUNNING", "message": "' + bytes(64 << 20) + b'"}')
PEAK_BYTES = 8 << 20
LARGE = b'{"status": "RUNNING", "message": "' + b"x" * (4 << 20) + b'"}'


class Metrics:
    def ray_call(self, verb: str, code: str, seconds: float) -> None:
        """Count nothing."""


class Head:
    """Answers every request with the same."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, b"{}", {}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Accept-Encoding", ""))
        return web.Response(status=self.status, body=self.body, headers=self.headers)


@pytest.fixture
async def head() -> AsyncIterator[tuple[Head, str, aiohttp.ClientSession]]:
    found, app = Head(), web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", found.answer)
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield found, str(server.make_url("")).rstrip("/"), session
    await server.close()


async def peak_of(asking: Callable[[], Awaitable[object]]) -> int:
    tracemalloc.start()
    try:
        await asking()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def pack(head: Head) -> None:
    head.body, head.headers = BOMB, {"Content-Encoding": "gzip"}


def enlarge(head: Head) -> None:
    head.body = LARGE


@pytest.mark.parametrize("answering", [pack, enlarge])
async def test_rays_state_of_a_job_is_read_up_to_a_bound(
    head: tuple[Head, str, aiohttp.ClientSession], answering: Callable[[Head], None]
) -> None:
    found, url, session = head
    answering(found)
    ray = RayJobs(url=url, token="t", session=session, metrics=Metrics())

    async def ask() -> None:
        with pytest.raises(Unreachable, match=r"larger than 64 KiB|is packed \(gzip\)"):
            await ray.job("u1-0")

    assert await peak_of(ask) < PEAK_BYTES + len(found.body)
    assert found.asked == ["identity"]


@pytest.mark.parametrize("answering", [pack, enlarge])
async def test_a_drivers_report_and_its_stacks_are_read_up_to_a_bound(
    head: tuple[Head, str, aiohttp.ClientSession], answering: Callable[[Head], None]
) -> None:
    found, url, session = head
    answering(found)

    async def ask() -> None:
        assert await ask_driver(session, url, "t") is None
        assert await ask_stacks(session, url, "t", deadline="d", message="m") == ""

    assert await peak_of(ask) < PEAK_BYTES + len(found.body)


async def test_a_refusal_is_shown_in_short(
    head: tuple[Head, str, aiohttp.ClientSession], caplog: pytest.LogCaptureFixture
) -> None:
    found, url, session = head
    found.status, found.body = 400, b"no " * MAX_BYTES
    ray = RayJobs(url=url, token="t", session=session, metrics=Metrics())

    with pytest.raises(Invalid) as raised:
        await ray.stop("u1-0")
    await scale_driver(session, url, "t", 2)

    assert len(str(raised.value)) < 2000
    assert max(map(len, caplog.messages)) < SHOWN_CHARACTERS + 100


async def test_a_document_within_the_bound_is_read(
    head: tuple[Head, str, aiohttp.ClientSession],
) -> None:
    found, url, session = head
    found.body = b'{"status": "RUNNING", "message": "well"}'
    ray = RayJobs(url=url, token="t", session=session, metrics=Metrics())

    job = await ray.job("u1-0")

    assert job is not None
    assert job.message == "well"
