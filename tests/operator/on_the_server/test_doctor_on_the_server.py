"""`rljob doctor` against a real API server: what it asks is answered, what is wrong is named, and what may
not be seen is skipped."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import NOBODY, ApiServer
from clusters import NPU, deployment, storage_class
from documented import ROOT, blocks_of
from kueue_crds import OTHERS, make_kueues_kinds
from real_kueue import make_queue
from typer.testing import CliRunner, Result

from rljob_runtime.cli.doctor.gather import TABLE
from rljob_runtime.cli.main import app

DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


def made(server: ApiServer, path: str, body: dict[str, Any]) -> None:
    answer = server.request("POST", path, body)
    assert answer.code == 201, answer


@pytest.fixture
def nodes(server: ApiServer) -> Iterator[None]:
    """Two nodes with eight devices each, as a kubelet would tell of them."""
    for name in ("node-a", "node-b"):
        made(server, "/api/v1/nodes", {"metadata": {"name": name}})
        path, patch = f"/api/v1/nodes/{name}", "application/merge-patch+json"
        status = {
            "allocatable": {NPU: "8", "cpu": "8"},
            "capacity": {NPU: "8", "cpu": "8"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
        }
        server.request("PATCH", f"{path}/status", {"status": status}, content_type=patch)
        # the API server taints nodes that are new
        server.request("PATCH", path, {"spec": {"taints": None}}, content_type=patch)
    yield
    for name in ("node-a", "node-b"):
        server.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def operators(server: ApiServer, namespace: str) -> Iterator[None]:
    """Deployments of rljob's operator, for this namespace, and KubeRay's, that are ready."""
    operator = deployment(arguments=(f"--namespace={namespace}", "--emulated-device-plugin"))
    kuberay = deployment("kuberay-operator", image="quay.io/kuberay/operator:v1.6.2")
    for manifest, component in ((operator, "operator"), (kuberay, "kuberay-operator")):
        labels = {
            "app.kubernetes.io/name": "rljob" if component == "operator" else component,
            "app.kubernetes.io/component": component,
        }
        manifest["metadata"] |= {
            "namespace": namespace,
            "labels": manifest["metadata"]["labels"] | labels,
        }
        manifest["spec"]["selector"] = {"matchLabels": labels}
        manifest["spec"]["template"]["metadata"] = {"labels": labels}
        made(server, DEPLOYMENTS.format(namespace), manifest)
        path = f"{DEPLOYMENTS.format(namespace)}/{manifest['metadata']['name']}/status"
        status = {"status": {"replicas": 1, "readyReplicas": 1}}
        server.request("PATCH", path, status, content_type="application/merge-patch+json")
    yield
    server.request("DELETE", DEPLOYMENTS.format(namespace))


@pytest.fixture
def job_file(tmp_path: Path, make_job: Callable[..., Any]) -> Callable[..., str]:
    """job_file(devices=8) writes a job on two nodes, with changes of the spec, and gives its path."""

    def write(*, devices: int = 4, **spec: Any) -> str:
        accelerator = {"nodes": 2, "devicesPerNode": devices}
        batch = {"globalBatchSize": 2 * devices}
        job = make_job("words", accelerator=accelerator, batch=batch, **spec)
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        return str(file)

    return write


@pytest.fixture
def rljob(
    server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
    return lambda *words: CliRunner().invoke(app, ["doctor", "--namespace", namespace, *words])


def lines(result: Result) -> dict[str, dict[str, str]]:
    """Findings by check, of --json; the worst where there are several."""
    order = ["ok", "skipped", "warn", "fail"]
    findings = sorted(
        json.loads(result.stdout)["findings"], key=lambda finding: order.index(finding["status"])
    )
    return {finding["check"]: finding for finding in findings}


def test_a_cluster_with_everything_passes(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    nodes: None,
    operators: None,
) -> None:
    result = rljob(job_file(), "--json")

    told = lines(result)
    assert result.exit_code == 0, result.stdout
    assert told["rljob-crd"]["text"] == "rljob.io/v1alpha1 with all fields of this client"
    for check in ("api-server", "operator", "kuberay", "rights", "devices", "placement", "job"):
        assert told[check]["status"] == "ok", told[check]
    assert f"2 nodes with 4 {NPU} each" in told["placement"]["text"]
    assert json.loads(result.stdout)["passed"] is True


def test_a_job_that_is_too_large_fails_with_the_number_that_fits(
    rljob: Callable[..., Result], job_file: Callable[..., str], nodes: None, operators: None
) -> None:
    result = rljob(job_file(devices=16))

    assert result.exit_code == 1
    assert "set accelerator.devicesPerNode to at most 8" in result.stdout


def test_a_queue_that_cannot_admit_the_job_fails_with_its_quota(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
    kueues_kinds: None,
) -> None:
    make_kueues_kinds(server, OTHERS)
    kueue = {"scheduler": "kueue", "queue": "research", "priorityClass": "high"}

    without = lines(rljob(job_file(scheduling=kueue), "--json"))["queue"]
    make_queue(server, namespace, workers=2, resource=NPU)
    too_large = lines(rljob(job_file(scheduling=kueue), "--json"))["queue"]
    del kueue["priorityClass"]
    fits = lines(rljob(job_file(devices=1, scheduling=kueue), "--json"))["queue"]

    assert "has no LocalQueue research; there are: none" in without["text"]
    assert "8 huawei.com/Ascend910 of one flavor are asked for" in too_large["text"]
    assert too_large["status"] == "fail"
    assert fits["status"] == "ok", fits


def test_the_queues_of_a_team_admit_its_jobs(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
    kueues_kinds: None,
) -> None:
    """Those that the documentation shows."""
    make_kueues_kinds(server, OTHERS)
    blocks = [
        yaml.safe_load(b.text) for b in blocks_of(ROOT / "docs/queues.md") if b.language == "yaml"
    ]
    (shown,) = [block["items"] for block in blocks if block.get("kind") == "List"]
    for one in shown:
        of = f"/namespaces/{namespace}" if one["metadata"].pop("namespace", "") else ""
        kind = one["kind"].lower()
        plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
        made(server, f"/apis/{one['apiVersion']}{of}/{plural}", one)
    kueue = {"scheduler": "kueue", "queue": "research", "priorityClass": "high"}

    told = lines(rljob(job_file(scheduling=kueue), "--json"))["queue"]

    assert told["status"] == "ok", told
    assert "ClusterQueue research has at most: ascend-910 32" in told["text"]


def test_devices_of_a_running_pod_are_counted(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
) -> None:
    limits = {"limits": {NPU: "6"}}
    spec = {"nodeName": "node-b", "containers": [{"name": "c", "image": "i", "resources": limits}]}
    made(server, f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "p"}, "spec": spec})

    told = lines(rljob(job_file(), "--json"))
    now = {"gracePeriodSeconds": 0}
    server.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p", now)

    assert "node-b 8, 6 asked for" in told["devices"]["text"]
    assert told["placement"]["status"] == "warn"


def test_a_pull_secret_of_another_type_is_named_and_what_secrets_hold_is_not_told(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
) -> None:
    logins = base64.b64encode(b'{"auths": {}}').decode()
    for name, kind, key in (
        ("right", "kubernetes.io/dockerconfigjson", ".dockerconfigjson"),
        ("wrong", "Opaque", "password"),
    ):
        # as `kubectl apply` keeps it beside the data
        kept = {"kubectl.kubernetes.io/last-applied-configuration": logins}
        secret = {"metadata": {"name": name, "annotations": kept}, "type": kind}
        path = f"/api/v1/namespaces/{namespace}/secrets"
        made(server, path, secret | {"data": {key: logins}})
    names = [{"name": name} for name in ("right", "wrong", "absent")]
    variable = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "wrong", "key": "password"}}}
    worker = {"imagePullSecrets": names, "env": [variable]}

    result = rljob(job_file(podTemplates={"worker": worker}), "--json")

    findings = [f for f in json.loads(result.stdout)["findings"] if f["check"] == "secrets"]
    assert result.exit_code == 1
    assert [finding["text"] for finding in findings] == [
        "Secret wrong, which podTemplates.worker.imagePullSecrets names, is of type Opaque; images are "
        "pulled with kubernetes.io/dockerconfigjson alone",
        f"namespace {namespace} has no Secret absent, which podTemplates.worker.imagePullSecrets names",
        "Secret right, Secret wrong: there",
    ]
    assert f"kubectl -n {namespace} delete secret wrong" in findings[0]["remedy"]
    assert logins not in result.stdout


def test_the_table_that_is_asked_for_holds_a_secrets_type_and_nothing_of_its_contents(
    server: ApiServer, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    logins = base64.b64encode(b"hidden").decode()
    kept = {"kubectl.kubernetes.io/last-applied-configuration": logins}
    made(server, path, {"metadata": {"name": "s", "annotations": kept}, "data": {"k": logins}})

    answer = server.request("GET", f"{path}/s?includeObject=None", accept=TABLE)

    assert answer.body["kind"] == "Table"
    assert answer.body["rows"][0]["cells"][:2] == ["s", "Opaque"]
    assert logins not in json.dumps(answer.body)


def test_a_pod_that_waits_in_vain_for_the_jobs_image_is_warned_of(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
) -> None:
    pods, image = f"/api/v1/namespaces/{namespace}/pods", "example.com/mine:1"
    spec = {"nodeName": "node-b", "containers": [{"name": "c", "image": image}]}
    made(server, pods, {"metadata": {"name": "p"}, "spec": spec})
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "desc = no such image"}}
    told_by_kubelet = {"name": "c", "image": image, "imageID": "", "ready": False}
    status = {
        "containerStatuses": [told_by_kubelet | {"restartCount": 0, "state": state}],
    }
    patched = server.request(
        "PATCH",
        f"{pods}/p/status",
        {"status": status},
        content_type="application/merge-patch+json",
    )
    assert patched.code == 200, patched

    told = lines(rljob(job_file(image=image), "--json"))
    server.request("DELETE", f"{pods}/p", {"gracePeriodSeconds": 0})

    assert told["image-pulls"]["status"] == "warn"
    assert told["image-pulls"]["text"] == (
        f"p waits in vain for {image}: ImagePullBackOff: no such image"
    )


def test_what_the_api_server_refuses_is_a_failure_of_the_job_alone(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
) -> None:
    hard = {"count/rljobs.rljob.io": "0"}
    quota = {"metadata": {"name": "none"}, "spec": {"hard": hard}, "status": {"hard": hard}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    made(server, path, quota)
    used = {"status": {"hard": hard, "used": {"count/rljobs.rljob.io": "0"}}}
    server.request(
        "PATCH", f"{path}/none/status", used, content_type="application/merge-patch+json"
    )

    told = lines(rljob(job_file(), "--json"))

    assert told["job"]["status"] == "fail"
    assert "quota" in told["job"]["text"]
    assert told["placement"]["status"] == "ok"


def test_an_empty_cluster_says_what_to_install(rljob: Callable[..., Result]) -> None:
    result = rljob()

    assert result.exit_code == 1
    assert "no Deployment of rljob's operator" in result.stdout
    assert "helm upgrade --install rljob" in result.stdout
    assert "1 fail" in result.stdout


def test_the_default_storage_class_is_named(
    rljob: Callable[..., Result], server: ApiServer
) -> None:
    made(server, CLASSES, storage_class("fast", default=True) | {"provisioner": "example.com/x"})

    told = lines(rljob("--json"))
    server.request("DELETE", f"{CLASSES}/fast")

    assert told["storage"]["text"] == "default StorageClass fast, of fast"


def test_who_may_nothing_is_told_so_and_all_else_is_skipped(
    rljob: Callable[..., Result],
    job_file: Callable[..., str],
    server: ApiServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(NOBODY)))

    result = rljob(job_file(), "--probe", "--json")

    told = lines(result)
    assert result.exit_code == 1
    assert told["api-server"]["status"] == "ok"
    assert told["rljob-crd"]["status"] == "ok"  # everybody may see what is served
    assert told["rights"]["status"] == "fail"
    assert told["rights"]["text"].startswith("you may not create rljobs.rljob.io in namespace")
    for check in ("operator", "kuberay", "devices", "placement", "job", "probe-pods"):
        assert told[check]["status"] == "skipped", told[check]
    assert 'cannot list resource "nodes"' in told["devices"]["text"]


def test_a_probe_whose_pods_never_start_leaves_none_behind(
    rljob: Callable[..., Result],
    server: ApiServer,
    namespace: str,
    nodes: None,
    operators: None,
) -> None:
    result = rljob("--probe", "--deadline", "2", "--json")

    told = lines(result)
    assert result.exit_code == 1
    assert "does not run after 2 s" in told["probe-pods"]["text"]
    assert "probe: makes 2 pods rljob-doctor-" in result.stderr
    assert server.request("GET", f"/api/v1/namespaces/{namespace}/pods").body["items"] == []


def test_an_api_server_that_is_not_there_is_the_only_line(
    rljob: Callable[..., Result], server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(server.kubeconfig().read_text())
    config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:9"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    result = rljob()

    assert result.exit_code == 1
    assert result.stdout.startswith("fail  api-server  no answer from the API server")


@pytest.mark.parametrize("option", [["--nodes", "2"], ["--image", "x"], ["--deadline", "5"]])
def test_options_of_a_probe_have_no_use_without_one(
    rljob: Callable[..., Result], option: list[str]
) -> None:
    result = rljob(*option)

    assert result.exit_code == 2
    assert f"{option[0]} has no use without --probe" in result.stderr


def test_a_job_that_is_invalid_is_refused_before_the_cluster_is_asked(
    rljob: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("apiVersion: rljob.io/v1alpha1\nkind: RLJob\n")

    result = rljob(str(tmp_path / "job.yaml"))

    assert result.exit_code == 2
    assert "metadata" in result.stderr
