"""Alerts and dashboards ask for metrics that operator and jobs have, and reach the cluster as they are."""

import json
import re

import pytest
import yaml
from chart_manifests import CHART, EVERYTHING, ROOT, only

from rljob_api.topology.pod_names import JOB_LABEL, JOB_UID_LABEL
from rljob_operator.build.pods import HEAD_PORTS
from rljob_operator.metrics import Metrics
from rljob_runtime.report.prometheus.families import families

SUFFIXES = {
    "counter": ["_total"],
    "gauge": [""],
    "histogram": ["_bucket", "_count", "_sum"],
    "info": [""],
}
OF_PROMETHEUS = {"namespace", "service", "pod", "le"}
METRIC = re.compile(r"\b([a-z][a-z0-9_]*)(?=\{)")
LABELS = re.compile(r"(?:by|on) \(([a-z, ]+)\)")
MATCHED = re.compile(r'[{,]([a-z_]+)=~?"')


@pytest.fixture(scope="module")
def known():
    """Every name that Prometheus may ask the operator for."""
    families = Metrics(version="1").registry.collect()
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


@pytest.fixture(scope="module")
def labels():
    """Labels of the operator's own metrics."""
    own = {"result", "state", "reason", "level", "verb", "code", "version"}
    instruments = vars(Metrics(version="1")).values()
    found = {name for i in instruments for name in getattr(i, "_labelnames", ())} | {"version"}
    assert own == found
    return own | OF_PROMETHEUS


def dashboard_queries():
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def alerts():
    (group,) = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    return group["rules"]


@pytest.mark.parametrize("expr", [*dashboard_queries(), *(rule["expr"] for rule in alerts())])
def test_every_query_is_over_metrics_and_labels_that_exist(expr, known, labels):
    asked = set(METRIC.findall(expr))
    used = {label for group in LABELS.findall(expr) for label in group.split(", ")}

    assert asked
    assert asked <= known
    assert used | set(MATCHED.findall(expr)) <= labels
    assert expr.count("(") == expr.count(")")


def test_every_metric_of_the_operator_itself_is_on_the_dashboard(known):
    shown = set(METRIC.findall(" ".join(dashboard_queries())))

    own = {name for name in known if not name.startswith(("process_", "python_"))}
    families = {re.sub("_(bucket|count|sum)$", "", name) for name in own}
    assert families == {
        re.sub("_(bucket|count|sum)$", "", name)
        for name in shown
        if not name.startswith("process_")
    }


def test_alerts_look_at_their_own_release_and_say_what_to_do(render):
    group, _ = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]

    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == len(alerts())
    for rule in group["rules"]:
        own = rule["expr"].count('{namespace="rljob-system",service="training-operator"')
        assert own == len(METRIC.findall(rule["expr"]))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboards_arrive_as_they_are_with_grafanas_label(render):
    config = only(render(EVERYTHING), "ConfigMap")

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {"rljob.json": "dashboard.json", "rljob-job.json": "job-dashboard.json"}
    assert {name: json.loads(text) for name, text in config["data"].items()} == {
        name: json.loads((CHART / "files" / file).read_text()) for name, file in files.items()
    }


def job_queries():
    dashboard = json.loads((CHART / "files" / "job-dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def job_alerts():
    (group,) = yaml.safe_load((CHART / "files" / "job-alerts.yaml").read_text())
    return group["rules"]


@pytest.mark.parametrize("expr", [*job_queries(), *(rule["expr"] for rule in job_alerts())])
def test_every_query_about_jobs_is_over_their_metrics_and_labels(expr):
    known = {family.name: {*family.labels} for family in families()}
    known["rljob_dock_row_age_versions_bucket"] = {"le"}
    asked = METRIC.findall(expr)
    used = {label for group in LABELS.findall(expr) for label in group.split(", ")}

    assert asked
    assert {*asked} <= {*known}
    of_these = set().union(*(known[name] for name in asked))
    assert used | {*MATCHED.findall(expr)} <= of_these | {"namespace", "rljob", "pod"}


def test_every_metric_of_a_job_is_on_its_dashboard():
    shown = {*METRIC.findall(" ".join(job_queries()))}

    left = {"rljob_dock_done_rows_total", "rljob_dock_read_rows_total", "rljob_dock_replicated"}
    counted = {"rljob_alarms_total", "rljob_rollbacks_total", "rljob_step_seconds_total"}
    counted |= {"rljob_recovery_seconds_total", "rljob_stragglers_total"}
    parts = {"rljob_reshard_checks_total", "rljob_reshard_overlap_ratio"}
    rest = {"rljob_reshard_in_flight_tokens_total", "rljob_reshard_in_flight_version"}
    others = {"rljob_evaluation_step", "rljob_last_step_timestamp_seconds"}
    means = {"rljob_reward_std", "rljob_reward_error_share", "rljob_staleness_tokens"}
    names = {family.name for family in families() if family.kind != "histogram"}
    assert names - shown == left | counted | parts | rest | others | means


def test_alerts_on_jobs_look_at_the_namespaces_that_are_watched(render):
    for values, matcher in (([], '{namespace=~".+"'), (["watchNamespaces={a,b}"], '=~"a|b"')):
        _, group = only(render(EVERYTHING, *values), "PrometheusRule")["spec"]["groups"]

        assert len({rule["alert"] for rule in group["rules"]}) == len(job_alerts())
        for rule in group["rules"]:
            assert rule["expr"].count(matcher) == len(METRIC.findall(rule["expr"]))
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
            assert set(rule["annotations"]) == {"summary", "description"}


def test_jobs_pods_are_read_at_their_own_ports(render):
    spec = only(render(EVERYTHING), "PodMonitor")["spec"]

    assert spec["namespaceSelector"] == {"any": True}
    assert spec["selector"] == {"matchExpressions": [{"key": JOB_UID_LABEL, "operator": "Exists"}]}
    assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= {*HEAD_PORTS}
    label = "__meta_kubernetes_pod_label_" + re.sub("[^a-z]", "_", JOB_LABEL)
    for endpoint in spec["podMetricsEndpoints"]:
        assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
        assert endpoint["relabelings"] == [{"sourceLabels": [label], "targetLabel": "rljob"}]


def test_jobs_of_watched_namespaces_alone_are_read(render):
    spec = only(render(EVERYTHING, "watchNamespaces={a,b}"), "PodMonitor")["spec"]

    assert spec["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_the_docs_have_every_metric_and_alert():
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = [(f.name, f.kind, f.labels, f.meaning) for f in families()]
    for instrument in vars(Metrics(version="1")).values():
        if hasattr(instrument, "_documentation"):
            name = instrument._name + "_total" * (instrument._type == "counter")
            told = instrument._type, instrument._labelnames, instrument._documentation
            rows.append((name, *told))

    for name, kind, own, meaning in rows:
        shown = ", ".join(f"`{label}`" for label in own)
        assert f"| `{name}` | {kind} | {shown} | {meaning} |" in text
    for rule in [*alerts(), *job_alerts()]:
        severity, summary = rule["labels"]["severity"], rule["annotations"]["summary"]
        assert f"| `{rule['alert']}` | {severity} | {summary} |" in text
