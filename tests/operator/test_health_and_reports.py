"""What kubelet, Prometheus and a log collector see of the operator."""

import asyncio
import io
import json
import logging

import pytest
from aiohttp.test_utils import TestClient, TestServer
from virtual_time import VirtualTime

from rljob_operator import log
from rljob_operator.health import Health, LoopLag, application
from rljob_operator.metrics import Metrics


class State:
    """What the checks look at."""

    def __init__(self):
        self.silent, self.waiting, self.leader, self.filled = 0.0, 0.0, True, True

    def oldest(self):
        return "Pod", self.silent

    def oldest_age(self):
        return self.waiting


@pytest.fixture
def state():
    return State()


@pytest.fixture
async def client(state):
    health = Health(
        lag=LoopLag(),
        watches=state,
        queue=state,
        is_leader=lambda: state.leader,
        caches_filled=lambda: state.filled,
    )
    metrics = Metrics(version="1.2.3")
    metrics.kube_call("apply", "409", 0.2)
    async with TestClient(TestServer(application(health, metrics.registry))) as client:
        yield client


async def answer(client, path):
    response = await client.get(path)
    return response.status, await response.text()


async def test_a_healthy_operator_says_so(client):
    status, text = await answer(client, "/healthz")

    assert status == 200
    assert text.count("ok ") == 3


async def test_a_silent_watch_or_a_stuck_job_is_named(client, state):
    state.silent, state.waiting = 481.0, 301.0

    status, text = await answer(client, "/healthz")

    assert status == 503
    assert "FAILED last sign of life of a watch (Pod): 481.0 s, limit 480 s" in text
    assert "FAILED oldest job in the queue: 301.0 s, limit 300 s" in text
    assert "ok event loop lag" in text


@pytest.mark.parametrize(
    ("leader", "filled", "status", "text"),
    [
        (True, True, 200, "ok leader, caches filled"),
        (True, False, 503, "FAILED leader: caches are not filled yet"),
        (False, False, 200, "ok standby"),
    ],
)
async def test_ready_is_who_stands_by_or_leads_with_filled_caches(
    client, state, leader, filled, status, text
):
    state.leader, state.filled = leader, filled

    assert await answer(client, "/readyz") == (status, text + "\n")


async def test_metrics_are_served_from_their_own_registry(client):
    status, text = await answer(client, "/metrics")

    assert status == 200
    assert 'k8s_api_request_duration_seconds_count{code="409",verb="apply"} 1.0' in text
    assert 'build_info{version="1.2.3"} 1.0' in text
    assert "workqueue_depth 0.0" in text


async def test_a_loop_that_stays_late_is_seen_and_a_hiccup_is_not():
    time = VirtualTime(0)
    late = [0.0]

    async def sleep(seconds):
        await time.sleep(seconds + late[0])

    lag = LoopLag(clock=time.clock, sleep=sleep, remember_beats=3)
    task = asyncio.create_task(lag.run())
    await time.advance(5)
    on_time = lag.seconds()
    late[0] = 8.0
    await time.advance(1)
    late[0] = 0.0
    await time.advance(9.5)
    hiccup = lag.seconds()
    late[0] = 8.0
    await time.advance(40)
    blocked = lag.seconds()
    task.cancel()

    assert on_time == 0
    assert hiccup == 0
    assert blocked >= 8


def test_states_that_nobody_is_in_any_more_vanish():
    metrics = Metrics(version="1")

    metrics.set_states({"Running": 2, "Queued": 1})
    metrics.set_states({"Running": 3})

    assert metrics.registry.get_sample_value("rljob_state", {"state": "Running"}) == 3
    assert metrics.registry.get_sample_value("rljob_state", {"state": "Queued"}) is None


def test_passes_are_counted_by_result_and_failed_ones_as_retries():
    metrics = Metrics(version="1")
    metrics.read_queue(lambda: 4, lambda: 1.5)

    metrics.key_added()
    metrics.pass_done("ok", 0.1)
    metrics.pass_done("error", 0.1)

    value = metrics.registry.get_sample_value
    assert value("rljob_reconcile_total", {"result": "error"}) == 1
    assert value("workqueue_retries_total") == 1
    assert value("workqueue_adds_total") == 1
    assert value("workqueue_depth") == 4
    assert value("workqueue_longest_running_seconds") == 1.5


@pytest.fixture
def lines():
    """The root logger's output as objects; what was set up before comes back."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()
    root.handlers = []
    log.set_up(stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers, root.level = before


async def test_each_line_is_json_with_the_job_it_is_about_also_from_inner_tasks(lines):
    logger = logging.getLogger("x")

    async def inner():
        logger.info("step=%d", 3)

    with log.job_field("ns/a"):
        await asyncio.create_task(inner())
        with log.job_field("ns/b"):
            logger.warning("careful")
    logger.info("nobody's")

    told = [(line["level"], line.get("job"), line["message"]) for line in lines()]
    assert told == [
        ("info", "ns/a", "step=3"),
        ("warning", "ns/b", "careful"),
        ("info", None, "nobody's"),
    ]
    assert all(line["time"].endswith("+00:00") for line in lines())


def test_an_error_is_logged_with_its_traceback_on_one_line(lines):
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("failed")

    (line,) = lines()
    assert line["message"] == "failed"
    assert "ValueError: boom" in line["error"]
