"""A Kubernetes API server with its etcd, without nodes and controllers, for tests and benchmarks.

Both programs are looked for in $KUBEBUILDER_ASSETS, as controller-runtime's envtest does, then on PATH.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from free_ports import free_port
from lightkube import SingleConfig
from lightkube.config.models import Cluster, Context, User

PROGRAMS = ("etcd", "kube-apiserver")
START_SECONDS = 90.0
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
ADMIN = "admin-of-this-test"
NOBODY = "nobody-of-this-test"
"""Token of a user without any role."""
RLJOB_CRD = Path(__file__).parents[3] / "crds" / "rljobs.rljob.io.yaml"
RAYCLUSTER_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rayclusters.ray.io"},
    "spec": {
        "group": "ray.io",
        "names": {"kind": "RayCluster", "plural": "rayclusters", "singular": "raycluster"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


class ApiServerMissing(Exception):
    """The programs are not on this machine; the message says where they were looked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status code and body of an answer."""

    code: int
    body: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server. ca: file with its certificate. pids: of etcd and the API server."""

    url: str
    ca: Path
    folder: Path
    pids: dict[str, int]

    def config(self, token: str = ADMIN) -> SingleConfig:
        """How lightkube finds it."""
        return SingleConfig(
            context_name="test",
            context=Context(cluster="test"),
            cluster=Cluster(server=self.url, certificate_auth=str(self.ca)),
            user=User(token=token),
        )

    def kubeconfig(self, token: str = ADMIN) -> Path:
        """A file for $KUBECONFIG."""
        context = {"cluster": "test", "user": "admin"}
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        file = self.folder / f"kubeconfig-{token}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": context}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
        }
        file.write_text(yaml.safe_dump(document))
        return file

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """One request as administrator, blocking; refusals are answers too. body: a text is sent as it is."""
        headers = {
            "Authorization": f"Bearer {ADMIN}",
            "Content-Type": content_type,
            "Accept": accept,
        }
        text = body if body is None or isinstance(body, str) else json.dumps(body)
        data = None if text is None else text.encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca))
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                return Answer(answer.status, _read(answer.read(), accept))
        except urllib.error.HTTPError as refusal:
            return Answer(refusal.code, _read(refusal.read(), accept))

    def writes(self) -> dict[tuple[str, str], int]:
        """How many writes it has answered since its start, by (verb, resource); leases left out."""
        text = self.request("GET", "/metrics", accept="*/*").body
        counts: dict[tuple[str, str], int] = {}
        for line in text.splitlines():
            if not line.startswith("apiserver_request_total{"):
                continue
            labels, _, value = line.rpartition(" ")
            known = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            key = (known["verb"], "/".join(filter(None, (known["resource"], known["subresource"]))))
            if key[0] in WRITES and key[1] != "leases":
                counts[key] = counts.get(key, 0) + int(float(value))
        return counts


@contextmanager
def api_server(folder: Path, *, rljobs: bool = True) -> Iterator[ApiServer]:
    """Start both in `folder`, with the kinds RLJob, if `rljobs`, and RayCluster; end both afterwards.

    Raises ApiServerMissing where a program is not found.
    """
    programs = {name: _program(name) for name in PROGRAMS}
    etcd, peers, port = free_port(), free_port(), free_port()
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start(programs["etcd"], folder, *_etcd_flags(folder, etcd, peers)))
        flags = _api_server_flags(folder, etcd, port)
        started.append(_start(programs["kube-apiserver"], folder, *flags))
        server = ApiServer(
            url=f"https://127.0.0.1:{port}",
            ca=folder / "certificates" / "apiserver.crt",
            folder=folder,
            pids={name: process.pid for name, process in zip(PROGRAMS, started, strict=True)},
        )
        _wait_until_ready(server, started)
        kinds = [yaml.safe_load(RLJOB_CRD.read_text())] if rljobs else []
        for crd in (*kinds, RAYCLUSTER_CRD):
            _make_kind(server, crd)
        yield server
    finally:
        for process in reversed(started):
            process.kill()  # nothing in there is worth an orderly end
            process.wait()


def _program(name: str) -> str:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    folders = filter(None, (assets, os.environ.get("PATH")))
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise ApiServerMissing(f"{name} is neither in $KUBEBUILDER_ASSETS ({assets!r}) nor on PATH")
    return found


def _etcd_flags(folder: Path, port: int, peer_port: int) -> list[str]:
    client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def _api_server_flags(folder: Path, etcd_port: int, port: int) -> list[str]:
    key, tokens = folder / "service-accounts.key", folder / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens.write_text(f'{ADMIN},admin,1,"system:masters"\n{NOBODY},nobody,2\n')
    return [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",  # no controller makes accounts
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
    ]


def _start(program: str, folder: Path, *flags: str) -> subprocess.Popen[bytes]:
    with (folder / f"{Path(program).name}.log").open("wb") as log:
        return subprocess.Popen([program, *flags], stdout=log, stderr=log, cwd=folder)


def _wait_until_ready(server: ApiServer, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for process in processes:
            assert process.poll() is None, f"{process.args!r} ended; see {server.folder}"
        if server.ca.exists() and _answers(server, "/readyz"):
            return
        time.sleep(0.1)
    raise AssertionError(f"no API server within {START_SECONDS:.0f} s; see {server.folder}")


def _answers(server: ApiServer, path: str) -> bool:
    try:
        return server.request("GET", path, accept="*/*").code == 200
    except OSError:
        return False


def _make_kind(server: ApiServer, crd: dict[str, Any]) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = server.request("POST", path, crd)
    assert made.code == 201, made
    group, names = crd["spec"]["group"], crd["spec"]["names"]
    kinds = f"/apis/{group}/{crd['spec']['versions'][0]['name']}/{names['plural']}"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if _answers(server, kinds):
            return
        time.sleep(0.05)
    raise AssertionError(f"{kinds} is not served: {server.request('GET', path).body}")


def _read(body: bytes, accept: str) -> Any:
    return json.loads(body) if accept.startswith("application/json") else body.decode()
