"""Alerts and dashboard ask for metrics that the operator has."""

import json
import re

import pytest
import yaml
from chart_manifests import CHART, EVERYTHING, only

from rljob_operator.metrics import Metrics

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
    own = {"result", "state", "reason", "verb", "code", "version"}
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
    (group,) = only(render(EVERYTHING), "PrometheusRule")["spec"]["groups"]

    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == len(alerts())
    for rule in group["rules"]:
        own = rule["expr"].count('{namespace="rljob-system",service="training-operator"')
        assert own == len(METRIC.findall(rule["expr"]))
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboard_arrives_as_it_is_with_grafanas_label(render):
    config = only(render(EVERYTHING), "ConfigMap")

    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["rljob.json"]) == json.loads(
        (CHART / "files" / "dashboard.json").read_text()
    )
