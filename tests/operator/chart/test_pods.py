"""The chart's pods: what they are started with, what they may do, who reaches them."""

import dataclasses
import http.server
import subprocess
import sys
import threading

import pytest
from chart_manifests import EVERYTHING, arguments, of_kind, only, pod_of

from rljob_api.topology.pod_names import JOB_UID_LABEL
from rljob_operator.arguments import parse
from rljob_operator.build import ports
from rljob_operator.build.names import OPERATOR_LABELS
from rljob_operator.settings import ProcessOptions, Settings

NAMESPACES = ("watchNamespaces={team-a,team-b}",)


def matches(selector, labels):
    return set(selector.items()) <= set(labels.items())


def test_by_default_the_operator_runs_with_its_own_defaults(render):
    settings, process = parse(arguments(render()))

    assert settings == Settings(
        runtime_image="ghcr.io/rljob/runtime:0.1.0",
        ascend_image="ghcr.io/rljob/runtime-ascend:0.1.0",
    )
    assert process == ProcessOptions(workers=8, port=8080, log_level="INFO")


def test_every_setting_of_the_operator_can_be_reached_by_a_value(render):
    settings, process = parse(arguments(render(EVERYTHING, "--namespace=elsewhere", *NAMESPACES)))

    assert settings == Settings(
        runtime_image="registry.example.com/runtime@sha256:" + 4 * "0123456789abcdef",
        ascend_image="registry.example.com/ascend:1.2.3-cann",
        ray_version="2.61.0",
        operator_namespace="elsewhere",
        watch_namespaces=("team-a", "team-b"),
        image_pull_secrets=("job-login",),
        stop_seconds=1200,
        unreachable_seconds=60,
        emulated_device_plugin=True,
        kueue=True,
        volcano=True,
        network_policy=False,
        egress_cidrs=("10.0.0.0/8", "2001:db8::/32"),
        metrics_namespace="monitoring",
        shared_memory="host-path",
        faults_namespace="mindx-dl",
    )
    usual = Settings(runtime_image="", ascend_image="")
    names = [field.name for field in dataclasses.fields(Settings)]
    assert all(getattr(settings, name) != getattr(usual, name) for name in names)
    assert process == ProcessOptions(workers=16, port=8080, log_level="DEBUG")


@pytest.mark.parametrize("values", [(), (EVERYTHING,)])
def test_the_operator_and_the_test_pass_pod_securitys_strictest_profile(render, values):
    manifests = render(*values)

    for manifest in (only(manifests, "Deployment"), only(manifests, "Pod")):
        _, pod = pod_of(manifest)
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert all("emptyDir" in volume for volume in pod.get("volumes", []))


@pytest.mark.parametrize("faults", [False, True])
def test_only_the_operator_and_who_writes_reports_have_a_token_of_the_cluster(render, faults):
    manifests = render("emulatedDevicePlugin.enabled=true", f"faults.enabled={faults}".lower())

    tokens = {
        manifest["kind"]: pod_of(manifest)[1]["automountServiceAccountToken"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "DaemonSet", "Pod")
    }
    assert tokens == {"Deployment": True, "DaemonSet": faults, "Pod": False}


@pytest.mark.parametrize("values", [(), (EVERYTHING,)])
def test_network_policies_of_jobs_let_the_operator_in_and_nobody_else(render, values):
    manifests = render(*values)

    let_in = {
        manifest["kind"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "DaemonSet", "Pod")
        and matches(OPERATOR_LABELS, pod_of(manifest)[0]["labels"])
    }
    assert let_in == {"Deployment"}


def test_whatever_selects_the_operators_pods_selects_them(render):
    manifests = render(EVERYTHING)

    labels = pod_of(only(manifests, "Deployment"))[0]["labels"]
    budget = only(manifests, "PodDisruptionBudget")["spec"]
    service = only(manifests, "Service")
    assert labels["team"] == "training"
    assert matches(service["spec"]["selector"], labels)
    assert matches(only(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"], labels)
    assert matches(budget["selector"]["matchLabels"], labels)
    monitor = only(manifests, "ServiceMonitor")["spec"]
    assert matches(monitor["selector"]["matchLabels"], service["metadata"]["labels"])
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]


def test_a_single_operator_has_no_budget_that_would_stop_a_drain(render):
    assert of_kind(render(), "PodDisruptionBudget") == []
    assert only(render("replicas=2"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_operator_reaches_jobs_dns_and_the_api_server_and_is_reached_for_its_metrics(render):
    spec = only(render("metrics.namespace=monitoring"), "NetworkPolicy")["spec"]

    dns, server, jobs = spec["egress"]
    (ingress,) = spec["ingress"]
    test, prometheus = ingress["from"]
    assert [port["port"] for port in dns["ports"]] == [ports.DNS, ports.DNS]
    assert [port["port"] for port in server["ports"]] == [443, 6443]
    assert [port["port"] for port in jobs["ports"]] == [ports.DASHBOARD, ports.STATUS]
    assert jobs["to"][0]["podSelector"]["matchExpressions"] == [
        {"key": JOB_UID_LABEL, "operator": "Exists"}
    ]
    assert matches(test["podSelector"]["matchLabels"], only(render(), "Pod")["metadata"]["labels"])
    assert prometheus["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }
    assert ingress["ports"] == [{"protocol": "TCP", "port": 8080}]


def test_the_device_plugin_runs_as_root_with_two_folders_of_the_node(render):
    _, pod = pod_of(only(render(EVERYTHING), "DaemonSet"))

    (container,) = pod["containers"]
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    assert paths == {"kubelet": "/var/lib/kubelet/device-plugins", "faults": "/run/faults"}
    assert pod["securityContext"]["runAsUser"] == 0
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["command"] == ["python", "-m", "rljob_device_plugin"]
    assert container["args"] == [
        "--resource=huawei.com/npu",
        "--chips=4",
        "--node=$(NODE_NAME)",
        "--faults=/faults",
        "--reports=mindx-dl",
    ]
    assert pod["nodeSelector"] == {"emulated": "true"}
    assert pod["tolerations"] == [{"operator": "Exists"}]


class Operator(http.server.BaseHTTPRequestHandler):
    """Not ready at first, then ready."""

    asked = 0

    def do_GET(self):
        type(self).asked += 1
        self.send_response(200 if self.path == "/readyz" and self.asked > 1 else 503)
        self.end_headers()
        self.wfile.write(b"ok leader")

    def log_message(self, *_):
        pass


def test_the_charts_test_waits_until_the_operator_is_ready(render):
    command = pod_of(only(render(), "Pod"))[1]["containers"][0]["command"]
    with http.server.HTTPServer(("127.0.0.1", 0), Operator) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        url = f"http://127.0.0.1:{server.server_port}/readyz"
        done = subprocess.run(
            [sys.executable, *command[1:-1], url], capture_output=True, text=True, timeout=60
        )
        server.shutdown()

    assert done.returncode == 0, done.stderr
    assert "503" in done.stdout
    assert "ok leader" in done.stdout
    assert command[-1] == "http://rljob-operator.rljob-system.svc:8080/readyz"
