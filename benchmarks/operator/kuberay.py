"""The operator beside the real KubeRay: 200 RLJobs on simulated nodes.

Needs the cluster of KUBECONFIG with KubeRay and nodes that kwok plays: label `type=kwok`, taint
`kwok.x-k8s.io/node`, two free devices for every job. Pods run on paper alone, so heads are fakes; API
server, scheduler, garbage collector and KubeRay are real. The operator is a process of this machine, and
none may run in the cluster. `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import asyncio
import base64
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from lightkube import ApiError, AsyncClient
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.core_v1 import Namespace, Pod, Secret

from benchmarks import ROOT
from benchmarks.operator.operator_process import (
    PACKAGES,
    OperatorProcess,
    quantile,
    total,
)
from benchmarks.support.figures import Figures

sys.path.append(str(ROOT / "tests" / "support" / "cluster"))

from cluster_jobs import JOB, merged
from fake_ray import FakeRay

RLJob = create_namespaced_resource("rljob.io", "v1alpha1", "RLJob", "rljobs")
RayCluster = create_namespaced_resource("ray.io", "v1", "RayCluster", "rayclusters")
NAMESPACE = "rljob-benchmark"
MANAGER = "rljob-benchmark"
CREATED_PER_SECOND = 50
WAIT_SECONDS, CLEANUP_SECONDS = 900.0, 180.0
WRITES = ("apply", "create", "patch", "patch_status", "delete")  # a lease is replaced
ON_PAPER = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
}
SPEC = {
    "steps": 4,
    "accelerator": {"type": "ascend910b", "nodes": 1, "devicesPerNode": 2},
    "podTemplates": dict.fromkeys(("head", "worker", "warehouse"), ON_PAPER),
}


class Heads:
    """Starts a head in `FakeRay` once its pod is ready. clusters: when each RayCluster was first seen."""

    def __init__(self, api: AsyncClient, ray: FakeRay) -> None:
        self.clusters: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self._api, self._ray = api, ray

    async def watch_clusters(self) -> None:
        async for _, cluster in self._api.watch(RayCluster, namespace=NAMESPACE):
            self.clusters.setdefault(cluster.metadata.name, time.monotonic())

    async def watch_pods(self) -> None:
        async for kind, pod in self._api.watch(
            Pod, namespace=NAMESPACE, labels={"ray.io/node-type": "head"}
        ):
            cluster = pod.metadata.labels["ray.io/cluster"]
            if kind == "DELETED":
                self._ray.end_head((NAMESPACE, cluster))
            elif cluster not in self.ready and _is_ready(pod):
                self._ray.start_head((NAMESPACE, cluster), await self._token(cluster))
                self.ready[cluster] = time.monotonic()

    async def _token(self, cluster: str) -> str:
        found = await self._api.get(RayCluster, name=cluster, namespace=NAMESPACE)
        secret = await self._api.get(
            Secret, name=found["spec"]["authOptions"]["secretName"], namespace=NAMESPACE
        )
        return base64.b64decode(secret.data["auth_token"]).decode()


def _is_ready(pod: Pod) -> bool:
    conditions = (pod.status and pod.status.conditions) or []
    return any(c.type == "Ready" and c.status == "True" for c in conditions)


async def create(api: AsyncClient, jobs: int) -> dict[str, float]:
    """Make the jobs; when each was there, by its RayCluster's name."""
    created: dict[str, float] = {}

    async def one(name: str) -> None:
        job = merged(JOB, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": SPEC})
        await api.create(RLJob(job))
        created[f"{name}-0"] = time.monotonic()

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(one(f"job-{number:04d}"))
            due = began + (number + 1) / CREATED_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
    return created


async def run(operator: OperatorProcess, api: AsyncClient, heads: Heads, jobs: int) -> Figures:
    """Create, reach Running, idle, delete."""
    figures = Figures()

    async def all_run() -> bool:
        await asyncio.sleep(1)
        states = (await operator.metrics()).get("rljob_state", [])
        return total(states, "", state="Running") == jobs

    async def none_left() -> bool:
        await asyncio.sleep(1)
        return not [c async for c in api.list(RayCluster, namespace=NAMESPACE)]

    await operator.until("leader", operator.is_ready_leader, seconds=60)
    used, began = operator.processor_seconds(), time.monotonic()
    created = await create(api, jobs)
    await operator.until("running", all_run, seconds=WAIT_SECONDS)
    took = time.monotonic() - began
    applied = sorted(heads.clusters[name] - created[name] for name in created)
    pods = sorted(heads.ready[name] - heads.clusters[name] for name in created)
    figures.add("all RayClusters applied after", max(heads.clusters.values()) - began, "s", 60)
    figures.add("RLJob to RayCluster, p50", applied[jobs // 2], "s")
    figures.add("RLJob to RayCluster, p99", applied[int(0.99 * jobs)], "s")
    figures.add("RayCluster to ready head (KubeRay, scheduler), p50", pods[jobs // 2], "s")
    figures.add("RayCluster to ready head, p99", pods[int(0.99 * jobs)], "s")
    figures.add("all jobs Running after", took, "s")
    await asyncio.sleep(30)  # the last news of the start
    found = await operator.metrics()
    passes = found["rljob_reconcile_duration_seconds"]
    writes = _writes(found)
    figures.add("API writes a job until it runs, events included", writes / jobs, "", 10)
    figures.add("a pass over a job, p99", 1000 * quantile(passes, 0.99), "ms", 250)
    used = (operator.processor_seconds() - used) / jobs
    figures.add("processor time of the operator a job until it runs", 1000 * used, "ms")
    await asyncio.sleep(30)
    figures.add("writes in 30 s without news", _writes(await operator.metrics()) - writes, "", 0)
    figures.add("resident memory of the operator", operator.resident_mib(), "MiB", 250)
    began = time.monotonic()
    await api.deletecollection(RLJob, namespace=NAMESPACE)
    await operator.until("deleted", none_left, seconds=WAIT_SECONDS)
    figures.add("all RayClusters gone after", time.monotonic() - began, "s")
    return figures


def _writes(found: dict[str, list[Any]]) -> float:
    calls = found["k8s_api_request_duration_seconds"]
    return sum(total(calls, "_count", verb=verb) for verb in WRITES)


async def measure(kubeconfig: Path, log: Path, jobs: int) -> Figures:
    """All figures of one run, in a namespace that goes with it."""
    api = AsyncClient(field_manager=MANAGER)
    crd = yaml.safe_load((ROOT / "crds" / "rljobs.rljob.io.yaml").read_text())
    await api.apply(CustomResourceDefinition.from_dict(crd), force=True)  # type: ignore[call-overload]
    for name in (NAMESPACE, "rljob-system"):
        with suppress(ApiError):  # it is there
            await api.create(Namespace(metadata=ObjectMeta(name=name)))
    try:
        async with FakeRay() as ray, asyncio.TaskGroup() as group:
            heads = Heads(api, ray)
            watches = [group.create_task(w) for w in (heads.watch_clusters(), heads.watch_pods())]
            url = ray.head_url("", "", 0).removesuffix("///0")
            operator = OperatorProcess(kubeconfig, url, log)
            try:
                figures = await run(operator, api, heads, jobs)
                assert len(ray.drivers) == jobs, "a job has two drivers"
                operator.stop()
            finally:
                operator.kill()
                for watch in watches:
                    watch.cancel()
    finally:
        await api.delete(Namespace, name=NAMESPACE)
        await _is_gone(api)  # so that the next run finds all devices free
        await api.close()
    return figures


async def _is_gone(api: AsyncClient) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS):
            async for kind, _ in api.watch(Namespace, fields={"metadata.name": NAMESPACE}):
                if kind == "DELETED":
                    return


def main() -> None:
    """Measure once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "KUBECONFIG" not in os.environ:
        parser.error("set KUBECONFIG to a cluster with KubeRay and simulated nodes")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "operator.log"
        figures = asyncio.run(measure(Path(os.environ["KUBECONFIG"]), log, options.jobs))
    if options.json:
        figures.write(options.json, packages=PACKAGES, facts={"jobs": options.jobs})


if __name__ == "__main__":
    main()
