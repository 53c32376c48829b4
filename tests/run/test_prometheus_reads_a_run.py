"""A real Prometheus reads a real run and the operator, and answers every query of the dashboards."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import start_http_server
from prometheus_server import JOB, OPERATOR, Prometheus, dashboard_queries, program, prometheus
from whole_runs import finish, free_port, start

from rljob_operator.metrics import Metrics
from rljob_runtime.prometheus.families import families

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(program("prometheus") is None, reason="there is no prometheus"),
]

NOT_HERE = {"rljob_dock_replicated"}
"""Metrics of which this run has none: its warehouses have no standby."""
SCRAPES_SECONDS = 3.0
BRITTLE = """
def reward(prompt, response, answer):
    if len(response) % 2:
        raise ValueError("odd")
    return 0.0
"""


def work(metrics: Metrics) -> None:
    """What an operator does in a while."""
    metrics.pass_done("ok", 0.01)
    metrics.key_added()
    metrics.kube_call("GET", "200", 0.01)
    metrics.ray_call("GET", "200", 0.01)
    metrics.time_to_running.observe(30)
    metrics.restarts.labels("HeadLost").inc()
    metrics.set_states({"Running": 1})
    metrics.leader.set(1)


@pytest.fixture
def scraped(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> Iterator[Prometheus]:
    """It has seen a run to its end: weights came in flight, rows grew old, alarms were raised."""
    (tmp_path / "brittle.py").write_text(BRITTLE)
    job = job_file(
        steps=4,
        model={"path": str(untrained_model)},
        rewards=[
            {"name": "correct", "type": "dataset", "threshold": 1.0},
            {"name": "brittle", "type": "python", "python": {"path": "brittle.py"}},
        ],
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01}},
        evaluation={"prompts": 4, "every": 2},
        accelerator={"type": "emulated", "devicesPerNode": 2, "memory": "2Gi"},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        flow={"mode": "async", "maxStaleness": 2},
        guards={"constantReward": {"window": 1}},
    )
    metrics, port = Metrics(version="1"), free_port()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    targets = {port: JOB, server.server_port: {**OPERATOR, "pod": "operator-1"}}
    work(metrics)
    with prometheus(tmp_path, targets) as found:
        environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": "t"}
        ran = finish(start(job, tmp_path / "run", environment=environment), tmp_path / "run")
        assert ran.code == 0, ran.output
        work(metrics)
        time.sleep(SCRAPES_SECONDS)
        yield found
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_every_query_of_both_dashboards_is_answered(scraped: Prometheus) -> None:
    job = dashboard_queries("job-dashboard.json", JOB)
    operator = dashboard_queries("dashboard.json", {"namespace": OPERATOR["namespace"]})

    empty = [(panel, query) for panel, query in [*job, *operator] if not scraped.series(query)]
    told = {row["metric"]["__name__"] for row in scraped.series('{rljob="small"}')}
    rules = [rule for group in scraped.ask("rules")["groups"] for rule in group["rules"]]

    assert len(job) > 50 and len(operator) > 15
    assert empty == []
    histogram = {"rljob_dock_row_age_versions"}
    expected = {family.name for family in families()} - NOT_HERE - histogram
    assert expected - told == set()
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert "RLJobGuardAlarm" in {rule["name"] for rule in rules if rule["state"] == "firing"}
