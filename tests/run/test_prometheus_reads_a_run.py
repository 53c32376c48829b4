"""A real Prometheus reads a real run and the operator, and answers every query of the dashboards."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from programs import needs
from prometheus_client import start_http_server
from prometheus_server import (
    JOB,
    OPERATOR,
    Prometheus,
    dashboard_choices,
    dashboard_queries,
    program,
    prometheus,
)
from run_events import event_of
from tracked_job import TRACKED
from whole_runs import RunsOfAll, run

from rljob_api.check.load import load_job
from rljob_api.topology.resolved import resolve
from rljob_operator.metrics import Metrics
from rljob_runtime.report.prometheus.families import families
from rljob_runtime.report.run_figures import RunFigures
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.status_server import StatusServer

pytest.importorskip("tensorboard")

pytestmark = [
    pytest.mark.run,
    needs("prometheus", program("prometheus")),
]

PICTURES = {"rljob_pictures_per_second", "rljob_picture_tokens_per_second"}
NOT_HERE = {"rljob_dock_replicated", "rljob_staleness_tokens"} | PICTURES
"""Metrics that it lacks: warehouses have no standby, no sample goes on in the next step, prompts are text."""
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
    metrics.chip_faults.labels("SeparateNPU").inc()
    metrics.set_faulty_chips({"SeparateNPU": 1})


@pytest.fixture
def figures(job_file: Callable[..., Path], run_of_all: RunsOfAll, tmp_path: Path) -> Iterator[int]:
    """The port of a server with the figures of a run whose devices swapped layouts."""
    job, told = job_file(**TRACKED), RunFigures()
    for event in run_of_all(job).events:
        told.on_event(event_of(event))
    requests, here = ScaleRequests(resolve(load_job(job))), LocalRun(tmp_path)
    server = StatusServer(
        port=0,
        token="t",
        total_steps=2,
        requests=requests,
        figures=told,
        run=here,
        stacks=StacksRequests(),
        save=threading.Event(),
    )
    yield server.port
    server.close()


@pytest.fixture
def operator() -> Iterator[int]:
    """The port of an operator's metrics."""
    metrics = Metrics(version="1")
    work(metrics)
    server, thread = start_http_server(0, addr="127.0.0.1", registry=metrics.registry)
    yield server.server_port
    server.shutdown()
    thread.join(10)
    server.server_close()


@pytest.fixture
def scraped(
    figures: int,
    operator: int,
    job_file: Callable[..., Path],
    untrained_model: Path,
    tmp_path: Path,
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
        evaluation={"prompts": 4},
        rollout={"maxSequences": 1},  # slow enough for weights to come meanwhile
        batch__microBatchSize=2,
        accelerator={"type": "emulated", "devicesPerNode": 2, "memory": "2Gi"},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        elastic={"update": {"minReplicas": 1}},
        flow={"mode": "async", "maxStaleness": 2},
        guards={"constantReward": {"window": 1}},
    )
    port = free_port()
    targets = {
        port: {**JOB, "pod": "small-0-head"},
        figures: {**JOB, "pod": "small-1-head"},
        operator: {**OPERATOR, "pod": "operator-1"},
    }
    with prometheus(tmp_path, targets) as found:
        environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": "t"}
        ran = run(job, tmp_path / "run", environment=environment)
        assert ran.code == 0, ran.output
        yield found


def test_every_query_of_both_dashboards_is_answered(scraped: Prometheus) -> None:
    job = dashboard_queries("job-dashboard.json", JOB)
    operator = dashboard_queries("dashboard.json", {"namespace": OPERATOR["namespace"]})

    queries = [query for _, query in [*job, *operator]]
    empty = [query for query in queries if not scraped.series(query)]
    told = {row["metric"]["__name__"] for row in scraped.series('{rljob="small"}')}
    rules = [rule for group in scraped.ask("rules")["groups"] for rule in group["rules"]]

    choices = [
        *dashboard_choices("job-dashboard.json", JOB),
        *dashboard_choices("dashboard.json", OPERATOR),
    ]
    offered = [
        scraped.ask(f"label/{label}/values", **{"match[]": selector}) for selector, label in choices
    ]

    assert offered == [[JOB["namespace"]], [JOB["rljob"]], [OPERATOR["namespace"]]]
    assert (len(job), len(operator)) == (61, 23)
    assert empty == [query for query in queries if any(name in query for name in PICTURES)]
    histogram = {"rljob_dock_row_age_versions"}
    assert {family.name for family in families()} - NOT_HERE - histogram - told == set()
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    alert = "ALERTS{alertname='RLJobGuardAlarm',alertstate='firing',alarm='constantReward'}"
    assert scraped.series(alert)
