"""The operator with a thousand RLJobs, on a real API server; KubeRay, kubelets and Ray are fakes.

Needs etcd and kube-apiserver in $KUBEBUILDER_ASSETS (envtest's variable) or on PATH. The operator is a
process of its own; API server, etcd and the fakes run on the same cores, so the figures are upper bounds.
`--quick` takes 100 jobs, `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

from benchmarks import ROOT
from benchmarks.operator.operator_process import (
    PACKAGES,
    OperatorProcess,
    quantile,
    total,
)
from benchmarks.support.figures import Figures

sys.path.append(str(ROOT / "tests" / "support" / "cluster"))

from api_server import ApiServer, ApiServerMissing, api_server
from cluster_jobs import JOB, merged
from fake_kuberay import RLJOBS, FakeKubeRay
from fake_ray import FakeRay

NAMESPACE = "team"
CREATED_PER_SECOND = 50
WAIT_SECONDS = 900.0
OF_OTHERS = {("POST", "rljobs"), ("POST", "pods"), ("PATCH", "pods/status"), ("DELETE", "pods")}


class Measurement:
    """One run of the benchmark."""

    def __init__(self, server: ApiServer, ray: FakeRay, kuberay: FakeKubeRay, jobs: int) -> None:
        self.server, self.ray, self.kuberay, self.jobs = server, ray, kuberay, jobs
        self.figures = Figures()

    async def run(self, idle_seconds: float) -> None:
        """Create, reach Running, idle, restart."""
        log = self.server.folder / "operator.log"
        url = self.ray.head_url("", "", 0).removesuffix("///0")
        operator = OperatorProcess(self.server.kubeconfig(), url, log)
        try:
            await operator.until("leader", operator.is_ready_leader, seconds=WAIT_SECONDS)
            self.used = operator.processor_seconds()
            self.servers_used = self._servers_seconds()
            await self._create_all()
            await self._reach_running(operator)
            await self._idle(operator, idle_seconds)
            self.figures.add("resident memory of the operator", operator.resident_mib(), "MiB", 250)
            operator.stop()
            await self._restart(log, url)
        finally:
            operator.kill()

    async def _create_all(self) -> None:
        self.began = time.monotonic()
        self.writes = await self._own_writes()
        spec = {"steps": 4, "accelerator": {"nodes": 1, "devicesPerNode": 1}}
        self.created: dict[str, float] = {}
        async with asyncio.TaskGroup() as group:
            for number in range(self.jobs):
                name = f"job-{number:04d}"
                job = merged(
                    JOB, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
                )
                group.create_task(self._create(name, job))
                due = self.began + (number + 1) / CREATED_PER_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _create(self, name: str, job: dict[str, Any]) -> None:
        await self.kuberay.api("POST", f"{RLJOBS}/namespaces/{NAMESPACE}/rljobs", job)
        self.created[f"{name}-0"] = time.monotonic()

    async def _reach_running(self, operator: OperatorProcess) -> None:
        seen = self.kuberay.seen

        async def all_seen() -> bool:
            return len(seen) >= self.jobs

        await operator.until("clusters", all_seen, seconds=WAIT_SECONDS)
        waits = sorted(seen[name] - self.created[name] for name in self.created)
        self.figures.add("all RayClusters applied after", max(seen.values()) - self.began, "s", 60)
        self.figures.add("RLJob to RayCluster, p99", waits[int(0.99 * len(waits))], "s")

        async def all_run() -> bool:
            await asyncio.sleep(1)
            states = (await operator.metrics()).get("rljob_state", [])
            return total(states, "", state="Running") == self.jobs

        await operator.until("running", all_run, seconds=WAIT_SECONDS)
        self.figures.add("all jobs Running after", time.monotonic() - self.began, "s")
        await self._until_quiet()
        after = await self._own_writes()
        made = {key: count - self.writes.get(key, 0) for key, count in after.items()}
        print({" ".join(key): count for key, count in made.items() if count}, flush=True)
        each = sum(made.values()) / self.jobs
        self.figures.add("API writes a job until it runs, events included", each, "", 10)
        used = (operator.processor_seconds() - self.used) / self.jobs
        self.figures.add("processor time of the operator a job until it runs", 1000 * used, "ms")
        used = (self._servers_seconds() - self.servers_used) / self.jobs
        self.figures.add(
            "processor time of API server and etcd meanwhile, a job", 1000 * used, "ms"
        )
        passes = (await operator.metrics())["rljob_reconcile_duration_seconds"]
        self.figures.add("passes over a job until it runs", total(passes, "_count") / self.jobs, "")
        self.figures.add("a pass over a job, p50", 1000 * quantile(passes, 0.5), "ms")
        self.figures.add("a pass over a job, p99", 1000 * quantile(passes, 0.99), "ms", 250)
        assert len(self.ray.drivers) == self.jobs, "a job has two drivers"

    async def _idle(self, operator: OperatorProcess, seconds: float) -> None:
        writes, asked = await self._own_writes(), self.ray.requests
        before = (await operator.metrics())["rljob_reconcile_duration_seconds"]
        used = operator.processor_seconds()
        await asyncio.sleep(seconds)
        used = operator.processor_seconds() - used
        passes = (await operator.metrics())["rljob_reconcile_duration_seconds"]
        p99 = 1000 * quantile(passes, 0.99, before)
        self.figures.add("a pass over a running job, p99", p99, "ms", 250)
        written = sum((await self._own_writes()).values()) - sum(writes.values())
        self.figures.add(f"writes in {seconds:.0f} s without news", written, "", 0)
        self.figures.add("processor time meanwhile", used / seconds, "cores")
        self.figures.add(
            "requests to Ray meanwhile", (self.ray.requests - asked) / seconds, "a second"
        )

    async def _restart(self, log: Path, url: str) -> None:
        writes, began = await self._own_writes(), time.monotonic()
        operator = OperatorProcess(self.server.kubeconfig(), url, log)

        async def warm() -> bool:
            passes = (await operator.metrics()).get("rljob_reconcile", [])
            return total(passes, "_total") >= self.jobs and await operator.is_ready_leader()

        try:
            await operator.until("ready", operator.is_ready_leader, seconds=WAIT_SECONDS)
            self.figures.add("restart: caches filled after", time.monotonic() - began, "s", 15)
            await operator.until("warm", warm, seconds=WAIT_SECONDS)
            self.figures.add("restart: every job looked at after", time.monotonic() - began, "s")
            await self._until_quiet()
            written = sum((await self._own_writes()).values()) - sum(writes.values())
            self.figures.add("restart: writes without news", written, "", 0)
            operator.stop()
        finally:
            operator.kill()
        assert len(self.ray.drivers) == self.jobs, "the restart made a second driver"

    async def _until_quiet(self) -> None:
        """Return once nothing was written for some seconds."""
        before = None
        while before != (now := await self._own_writes()):
            before = now
            await asyncio.sleep(4)

    def _servers_seconds(self) -> float:
        """Processor time of API server and etcd."""
        times = [psutil.Process(pid).cpu_times() for pid in self.server.pids.values()]
        return float(sum(time.user + time.system for time in times))

    async def _own_writes(self) -> dict[tuple[str, str], int]:
        """What the operator wrote, by verb and resource; leases left out."""
        found = await asyncio.to_thread(self.server.writes)  # the fakes go on meanwhile
        return {key: count for key, count in found.items() if key not in OF_OTHERS}


async def measure(folder: Path, jobs: int, idle_seconds: float) -> Figures:
    """All figures of one run."""
    with api_server(folder) as server:
        for namespace in (NAMESPACE, "rljob-system"):
            server.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        async with AsyncExitStack() as stack:
            ray = await stack.enter_async_context(FakeRay())
            kuberay = await stack.enter_async_context(FakeKubeRay(server, ray))
            measurement = Measurement(server, ray, kuberay, jobs)
            await measurement.run(idle_seconds)
    return measurement.figures


def main() -> None:
    """Measure once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 jobs")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs, idle_seconds = (100, 10.0) if options.quick else (options.jobs, 60.0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = asyncio.run(measure(Path(folder), jobs, idle_seconds))
        except ApiServerMissing as missing:
            sys.exit(f"{missing}: see benchmarks/operator/controller.py")
    if options.json:
        figures.write(options.json, packages=PACKAGES, facts={"jobs": jobs})


if __name__ == "__main__":
    main()
