"""One API server for the folder, a namespace a test, and the whole operator in this process."""

import asyncio
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, ApiServerMissing, api_server
from cluster_jobs import JOB, merged
from documented import ROOT
from fake_kuberay import FakeKubeRay
from fake_ray import FakeRay
from job_client import Jobs
from kueue_crds import make_kueues_kinds
from programs import require

from rljob_operator.arguments import parse
from rljob_operator.kube.kube_client import Kube
from rljob_operator.main import Operator
from rljob_operator.metrics import Metrics
from rljob_operator.watch.cache import JobKey

NUMBERS = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups at its own turn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of pytest-xdist for all of them: they share an API server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("api-server"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    try:
        with api_server(tmp_path_factory.mktemp("api-server")) as running:
            yield running
    except ApiServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kueues_kinds(server: ApiServer) -> None:
    """Kueue's CRDs are on the server."""
    make_kueues_kinds(server)


@pytest.fixture
def namespace(server: ApiServer) -> str:
    name = f"team-{next(NUMBERS)}"
    made = server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert made.code == 201, made
    return name


@pytest.fixture
def kubectl(
    server: ApiServer, namespace: str, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """kubectl("get", "rljobs"), in the test's namespace."""
    places = os.pathsep.join((os.environ.get("KUBEBUILDER_ASSETS", ""), os.environ.get("PATH", "")))
    program = shutil.which("kubectl", path=places)
    require("kubectl", program, "kubectl is neither in $KUBEBUILDER_ASSETS nor on PATH")
    config = yaml.safe_load(server.kubeconfig().read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    user = [f"--kubeconfig={tmp_path / 'kubeconfig'}", "--request-timeout=30s"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *user, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
        )

    return run


@pytest.fixture
async def metrics() -> Metrics:
    return Metrics(version="test")


@pytest.fixture
async def kube(server: ApiServer, metrics: Metrics) -> AsyncIterator[Kube]:
    kube = Kube(metrics=metrics, config=server.config())
    yield kube
    await kube.close()


@pytest.fixture
def jobs(kube: Kube, namespace: str) -> Jobs:
    return Jobs(kube, namespace)


@pytest.fixture
def make_job(namespace: str) -> Callable[..., dict[str, Any]]:
    """make_job(steps=4): a manifest of a small job on one device, with changes of the spec."""

    def make(name: str = "spell-backward", **spec: Any) -> dict[str, Any]:
        small = {"steps": 4, "accelerator": {"nodes": 1, "devicesPerNode": 1}}
        own = {"metadata": {"name": name, "namespace": namespace}, "spec": merged(small, spec)}
        return merged(JOB, own)

    return make


@pytest.fixture
async def ray() -> AsyncIterator[FakeRay]:
    async with FakeRay() as ray:
        yield ray


@pytest.fixture
async def kuberay(server: ApiServer, ray: FakeRay) -> AsyncIterator[FakeKubeRay]:
    async with FakeKubeRay(server, ray) as kuberay:
        yield kuberay


class Process:
    """The operator as a test sees it."""

    def __init__(self, operator: Operator, namespace: str) -> None:
        self._operator, self._namespace = operator, namespace
        self.stop = operator.stop

    def look_at(self, name: str) -> None:
        """Ask for a pass now: what changes in Ray alone is seen at the next poll otherwise."""
        self._operator.look_later(JobKey(self._namespace, name), 0)

    def passes(self) -> float:
        """Passes that are done."""
        (counter,) = self._operator._metrics.reconciles.collect()
        return sum(s.value for s in counter.samples if s.name.endswith("_total"))

    def figure(self, name: str, **labels: str) -> float | None:
        """A metric's value."""
        return self._operator._metrics.registry.get_sample_value(name, labels)

    def is_leader(self) -> bool:
        (leader,) = self._operator._metrics.leader.collect()
        return leader.samples[0].value == 1


@pytest.fixture
def operator(
    server: ApiServer, ray: FakeRay, kuberay: FakeKubeRay, namespace: str, monkeypatch
) -> Callable[[], Any]:
    """`async with operator("--option")`: the whole operator, for the test's namespace. tag: of the images
    that it gives jobs."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig()))
    usual = [f"--namespace={namespace}", f"--operator-namespace={namespace}", "--port=0"]

    @asynccontextmanager
    async def running(*more: str, tag: str = "1") -> AsyncIterator[Process]:
        images = [f"--{kind}-image=example.com/{kind}:{tag}" for kind in ("runtime", "ascend")]
        operator = Operator(*parse([*images, *usual, *more]), head_url=ray.head_url)
        task = asyncio.create_task(operator.run())
        try:
            yield Process(operator, namespace)
        finally:
            operator.stop()
            async with asyncio.timeout(60):
                assert await task == 0

    return running
