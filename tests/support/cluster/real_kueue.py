"""Kueue's own controller beside an API server of a test, without its webhooks.

Its program is taken from RLJOB_KUEUE: `go build -o kueue ./cmd/kueue` in Kueue's module makes it.
"""

import base64
import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from api_server import ApiServer
from free_ports import free_port
from kueue_crds import GROUP

START_SECONDS = 120.0
NAMESPACE = "kueue-system"
SECRET = "kueue-webhook-server-cert"
API = f"/apis/{GROUP}/v1beta2"
CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
SERVICE = {"namespace": NAMESPACE, "name": "kueue-webhook-service", "path": "/convert"}
MERGE = "application/merge-patch+json"


def program() -> str | None:
    """Where Kueue's controller is, if it is anywhere."""
    return shutil.which(os.environ.get("RLJOB_KUEUE", ""))


@contextlib.contextmanager
def real_kueue(server: ApiServer, folder: Path) -> Iterator[None]:
    """The controller until the body's end. The server knows all of Kueue's kinds."""
    found = program()
    assert found is not None, "tests that ask for it are skipped without"
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    server.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    server.request("POST", secrets, {"metadata": {"name": SECRET}})
    _make_webhooks(server)
    health, webhook = free_port(), free_port()
    certificates = folder / "certificates"
    certificates.mkdir()
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"port": webhook, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {
            "frameworks": ["ray.io/raycluster"],
            "externalFrameworks": ["RLJob.v1alpha1.rljob.io"],
        },
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    log = folder / "kueue.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [found, f"--config={folder / 'config.yaml'}", "--zap-log-level=2"],
            stdout=output, stderr=output, env=os.environ | {"KUBECONFIG": str(server.kubeconfig())},
        )  # fmt: skip
    try:
        _mount(server, f"{secrets}/{SECRET}", certificates, process)
        _until_ready(f"http://127.0.0.1:{health}/readyz", process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _make_webhooks(server: ApiServer) -> None:
    """What Kueue puts its certificate into before it begins; nobody calls any of them."""
    for kind in ("Validating", "Mutating"):
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": f"kueue-{kind.lower()}-webhook-configuration"},
            "webhooks": [],
        }
        path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
        server.request("POST", path, configuration)
    webhook = {"clientConfig": {"service": SERVICE}, "conversionReviewVersions": ["v1"]}
    change = {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}}
    for kind in CONVERTED:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.{GROUP}"
        changed = server.request("PATCH", path, change, content_type=MERGE)
        assert changed.code == 200, changed


def _mount(server: ApiServer, path: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """What a kubelet does: the Secret's contents, once they are there, as files."""
    deadline = time.monotonic() + START_SECONDS
    while not (data := server.request("GET", path).body.get("data")):
        assert process.poll() is None, f"Kueue ended; see {folder.parent}"
        assert time.monotonic() < deadline, f"no certificates after {START_SECONDS:.0f} s"
        time.sleep(0.2)
    for name, text in data.items():
        (folder / name).write_bytes(base64.b64decode(text))


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None, f"Kueue ended: {log.read_text()[-2000:]}"
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(url, timeout=5).status == 200:
                return
        assert time.monotonic() < deadline, f"not ready after {START_SECONDS:.0f} s: {log}"
        time.sleep(0.2)


def make_queue(server: ApiServer, namespace: str, *, workers: int, resource: str) -> None:
    """LocalQueue `research` of the namespace, with a ClusterQueue of its own and quota for so many worker
    pods of a device each; its pods go to nodes with a label of the flavor."""
    amounts = {"cpu": "1000", "memory": "1000Gi", resource: str(workers)}
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    objects: list[tuple[str, dict[str, Any]]] = [
        ("resourceflavors", {"kind": "ResourceFlavor", "spec": {"nodeLabels": {"chip": "910b"}}}),
        (
            "clusterqueues",
            {
                "kind": "ClusterQueue",
                "spec": {
                    "namespaceSelector": {},
                    "preemption": {"withinClusterQueue": "LowerPriority"},
                    "resourceGroups": [
                        {
                            "coveredResources": list(amounts),
                            "flavors": [{"name": namespace, "resources": quotas}],
                        }
                    ],
                },
            },
        ),
    ]
    for plural, body in objects:
        _make(server, f"{API}/{plural}", namespace, body)
    queue = {"kind": "LocalQueue", "spec": {"clusterQueue": namespace}}
    _make(server, f"{API}/namespaces/{namespace}/localqueues", "research", queue)


def _make(server: ApiServer, path: str, name: str, body: dict[str, Any]) -> None:
    meta = {"apiVersion": f"{GROUP}/v1beta2", "metadata": {"name": name}}
    made = server.request("POST", path, meta | body)
    assert made.code == 201, made
