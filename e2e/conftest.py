"""The cluster with rljob's chart on it, a namespace for each module, and storage that all pods share."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cluster import Cluster
from support.jobs import CLAIM, THREADS, TWO_JOBS, small, wait_until_it_trains
from support.tools import ROOT, Tools, build_and_load, run

SYSTEM = "rljob-system"
RELEASE = "rljob"
SHARED_FOLDER = os.environ.get("RLJOB_E2E_SHARED_FOLDER", "/var/lib/rljob-e2e")
"""A folder that is the same on all nodes."""


@pytest.fixture(scope="session")
def tools() -> Tools:
    return Tools.from_environment()


@pytest.fixture(scope="session")
def images(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Built from this tree and known to every node."""
    if not os.environ.get("RLJOB_E2E_SKIP_IMAGES"):
        build_and_load(tools, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def values(tools: Tools) -> list[str]:
    """Arguments of helm that name this tree's images and turn the emulated devices on."""
    names = {"operator": "operator", "runtime": "runtime", "devicePlugin": "device-plugin"}
    settings = ["emulatedDevicePlugin.enabled=true", "sharedMemory.hostPath=true"]
    for value, name in names.items():
        repository, _, tag = tools.image(name).rpartition(":")
        settings += [f"image.{value}.repository={repository}", f"image.{value}.tag={tag}"]
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def release(images: None, values: list[str]) -> Iterator[Cluster]:
    """rljob as the README installs it; uninstalled at the end. The namespace of the operator."""
    folder = str(ROOT / "helm/rljob")
    install = ["helm", "upgrade", "--install", RELEASE, folder, "-n", SYSTEM, "--create-namespace"]
    run([*install, *values, "--wait", "--timeout", "180s"], seconds=240)
    system = Cluster.connect(SYSTEM)
    system.wait(
        "v1",
        "Node",
        "every node offers emulated devices",
        lambda nodes: all(offered(node) for node in nodes.values()),
        seconds=60,
    )
    yield system
    run(["helm", "uninstall", RELEASE, "-n", SYSTEM, "--wait", "--timeout", "120s"], seconds=180)


def offered(node: dict) -> int:  # type: ignore[type-arg]
    """Devices that a node offers."""
    return int(node["status"]["allocatable"].get("huawei.com/Ascend910", 0))


@pytest.fixture(scope="module")
def cluster(release: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A namespace of the module's own."""
    with namespace(release, request.module.__name__.rpartition("test_")[2]) as within:
        yield within


@pytest.fixture(scope="module")
def reading(release: Cluster, values: list[str]) -> Iterator[None]:
    """The release reads reports of chips from its own namespace meanwhile."""
    folder = str(ROOT / "helm/rljob")
    upgrade = ["helm", "upgrade", "rljob", folder, "-n", release.namespace, *values]
    wait = ["--wait", "--timeout", "180s"]
    on = ["--set", f"faults.enabled=true,faults.namespace={release.namespace}"]
    run([*upgrade, *on, *wait], seconds=240)
    nodes = {node["metadata"]["name"] for node in release.objects("Node")}
    release.wait(
        "v1",
        "ConfigMap",
        "every node has a report of its chips",
        lambda found: {f"mindx-dl-deviceinfo-{node}" for node in nodes} <= found.keys(),
        seconds=120,
    )
    yield
    run([*upgrade, *wait], seconds=240)


@pytest.fixture(scope="session")
def two_jobs(release: Cluster) -> Iterator[Cluster]:
    """The namespace of two jobs that have begun to train at once: `first`, which goes on, and `second`."""
    with namespace(release, "two-jobs") as within:
        for name, spec in TWO_JOBS.items():
            within.apply(small(name, podTemplates={"head": {"env": [THREADS]}}, **spec))
        for name in TWO_JOBS:
            wait_until_it_trains(within, name)
        yield within


@contextmanager
def namespace(release: Cluster, what: str) -> Iterator[Cluster]:
    """One with a claim on storage that all its pods share."""
    name = f"e2e-{what.replace('_', '-')}-{uuid.uuid4().hex[:5]}"
    within = release.within(name)
    within.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    try:
        make_storage(within)
        yield within
    finally:
        within.delete_namespace()


def make_storage(cluster: Cluster, claim_name: str = CLAIM) -> None:
    """A volume in a folder that is the same on all nodes, open to the pods' user, and a claim on it."""
    name, opening = f"{cluster.namespace}-{claim_name}", f"open-{claim_name}"
    folder = str(Path(SHARED_FOLDER) / name)
    volume = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "hostPath": {"path": folder, "type": "DirectoryOrCreate"},
        "claimRef": {"namespace": cluster.namespace, "name": claim_name},
    }
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": name,
        "resources": {"requests": {"storage": "10Gi"}},
    }
    cluster.apply(_manifest("PersistentVolume", name, volume))
    cluster.apply(_manifest("PersistentVolumeClaim", claim_name, claim))
    opener = {
        "restartPolicy": "Never",
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": claim_name}}],
        "containers": [
            {
                "name": "open",
                "image": Tools.from_environment().image("operator"),
                "command": ["chmod", "1777", "/runs"],
                "securityContext": {"runAsUser": 0},
                "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
            }
        ],
    }
    cluster.apply(_manifest("Pod", opening, opener))
    cluster.wait(
        "v1",
        "Pod",
        "the storage is open",
        lambda pods: pods[opening]["status"].get("phase") == "Succeeded",
        seconds=60,
    )
    cluster.kill_pod(opening)


def _manifest(kind: str, name: str, spec: dict) -> dict:  # type: ignore[type-arg]
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
