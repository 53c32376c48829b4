"""The operator with a thousand RLJobs, on a real API server; KubeRay, kubelets and Ray are fakes.

Needs etcd and kube-apiserver in $KUBEBUILDER_ASSETS (envtest's variable) or on PATH. The operator is a
process of its own; API server, etcd and the fakes run on the same cores, so the figures are upper bounds.
`--quick` takes 100 jobs, `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from results import describe_machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "support"))

from api_server import ApiServer, ApiServerMissing, api_server  # noqa: E402
from cluster_jobs import JOB, merged  # noqa: E402
from fake_kuberay import RLJOBS, FakeKubeRay  # noqa: E402
from fake_ray import FakeRay  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families as families  # noqa: E402

NAMESPACE = "team"
CREATED_PER_SECOND = 50
WAIT_SECONDS = 900.0
OF_OTHERS = {("POST", "rljobs"), ("POST", "pods"), ("PATCH", "pods/status"), ("DELETE", "pods")}


@dataclass(frozen=True, slots=True)
class Figure:
    """One result and what it may be at most."""

    name: str
    value: float
    unit: str
    limit: float | None = None


class OperatorProcess:
    """`python -m rljob_operator`, but for where heads are; its metrics and what it costs."""

    def __init__(self, server: ApiServer, ray_url: str, log: Path) -> None:
        self.port = _free_port()
        arguments = ["--runtime-image=example.com/runtime:1", "--ascend-image=example.com/ascend:1"]
        command = [sys.executable, __file__, "--as-operator", ray_url, f"--port={self.port}"]
        environment = os.environ | {"KUBECONFIG": str(server.kubeconfig())}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, *arguments], stdout=file, stderr=file, env=environment
            )
        self.usage = psutil.Process(self._process.pid)

    async def metrics(self, kuberay: FakeKubeRay) -> dict[str, list[Any]]:
        """Samples by name; {} while it does not answer."""
        text = await _get(kuberay, f"http://127.0.0.1:{self.port}/metrics")
        return {family.name: family.samples for family in families(text)} if text else {}

    async def is_ready_leader(self, kuberay: FakeKubeRay) -> bool:
        text = await _get(kuberay, f"http://127.0.0.1:{self.port}/readyz")
        return text.startswith("ok leader")

    def stop(self) -> None:
        """End it as Kubernetes does, and wait."""
        self._process.terminate()
        assert self._process.wait(timeout=60) == 0


class Measurement:
    """One run of the benchmark."""

    def __init__(self, server: ApiServer, ray: FakeRay, kuberay: FakeKubeRay, jobs: int) -> None:
        self.server, self.ray, self.kuberay, self.jobs = server, ray, kuberay, jobs
        self.figures: list[Figure] = []

    async def run(self, idle_seconds: float) -> None:
        """Create, reach Running, idle, restart."""
        log = self.server.folder / "operator.log"
        url = self.ray.head_url("", "", 0).removesuffix("///0")
        operator = OperatorProcess(self.server, url, log)
        try:
            await self._until("leader", lambda: operator.is_ready_leader(self.kuberay))
            self.used = sum(operator.usage.cpu_times()[:2])
            await self._create_all()
            await self._reach_running(operator)
            await self._idle(operator, idle_seconds)
            memory = operator.usage.memory_info().rss / 2**20
            self._add("resident memory of the operator", memory, "MiB", 250)
            operator.stop()
            await self._restart(log, url)
        finally:
            if operator.usage.is_running():
                operator.usage.kill()

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
        await self._until("clusters", lambda: _true(len(seen) >= self.jobs))
        waits = sorted(seen[name] - self.created[name] for name in self.created)
        self._add("all RayClusters applied after", max(seen.values()) - self.began, "s", 60)
        self._add("RLJob to RayCluster, p99", waits[int(0.99 * len(waits))], "s")
        await self._until("drivers", lambda: _true(len(self.ray.drivers) >= self.jobs))

        async def all_run() -> bool:
            states = (await operator.metrics(self.kuberay))["rljob_state"]
            await asyncio.sleep(1)
            return any(s.labels["state"] == "Running" and s.value == self.jobs for s in states)

        await self._until("running", all_run)
        self._add("all jobs Running after", time.monotonic() - self.began, "s")
        await self._until_quiet()
        after = await self._own_writes()
        made = {key: count - self.writes.get(key, 0) for key, count in after.items()}
        print({" ".join(key): count for key, count in made.items() if count}, flush=True)
        total = sum(made.values()) / self.jobs
        self._add("API writes a job until it runs, events included", total, "", 10)
        used = (sum(operator.usage.cpu_times()[:2]) - self.used) / self.jobs
        self._add("processor time of the operator a job until it runs", 1000 * used, "ms")
        passes = (await operator.metrics(self.kuberay))["rljob_reconcile_duration_seconds"]
        count = next(s.value for s in passes if s.name.endswith("_count"))
        self._add("passes over a job until it runs", count / self.jobs, "")
        self._add("a pass over a job, p50", 1000 * _quantile(passes, 0.5), "ms")
        self._add("a pass over a job, p99", 1000 * _quantile(passes, 0.99), "ms", 250)
        assert len(self.ray.drivers) == self.jobs, "a job has two drivers"

    async def _idle(self, operator: OperatorProcess, seconds: float) -> None:
        writes, asked = await self._own_writes(), self.ray.requests
        used = sum(operator.usage.cpu_times()[:2])
        await asyncio.sleep(seconds)
        used = sum(operator.usage.cpu_times()[:2]) - used
        written = sum((await self._own_writes()).values()) - sum(writes.values())
        self._add(f"writes in {seconds:.0f} s without news", written, "", 0)
        self._add("processor time meanwhile", used / seconds, "cores")
        self._add("requests to Ray meanwhile", (self.ray.requests - asked) / seconds, "a second")

    async def _restart(self, log: Path, url: str) -> None:
        writes, began = await self._own_writes(), time.monotonic()
        operator = OperatorProcess(self.server, url, log)

        async def warm() -> bool:
            found = await operator.metrics(self.kuberay)
            done = sum(
                s.value for s in found.get("rljob_reconcile", []) if s.name.endswith("_total")
            )
            return done >= self.jobs and await operator.is_ready_leader(self.kuberay)

        try:
            await self._until("ready", lambda: operator.is_ready_leader(self.kuberay))
            self._add("restart: caches filled after", time.monotonic() - began, "s", 15)
            await self._until("warm", warm)
            self._add("restart: every job looked at after", time.monotonic() - began, "s")
            await self._until_quiet()
            written = sum((await self._own_writes()).values()) - sum(writes.values())
            self._add("restart: writes without news", written, "", 0)
        finally:
            operator.stop()
        assert len(self.ray.drivers) == self.jobs, "the restart made a second driver"

    async def _until_quiet(self) -> None:
        """Return once nothing was written for some seconds."""
        before = None
        while before != (now := await self._own_writes()):
            before = now
            await asyncio.sleep(4)

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not await holds():
            if time.monotonic() > deadline:
                sys.exit(f"not {what} within {WAIT_SECONDS:.0f} s: {self.server.folder}")
            await asyncio.sleep(0.1)

    async def _own_writes(self) -> dict[tuple[str, str], int]:
        """What the operator wrote, by verb and resource; leases left out."""
        found = await asyncio.to_thread(self.server.writes)  # the fakes go on meanwhile
        return {key: count for key, count in found.items() if key not in OF_OTHERS}

    def _add(self, name: str, value: float, unit: str, limit: float | None = None) -> None:
        self.figures.append(Figure(name, value, unit, limit))
        print(
            f"{name:52} {value:10,.2f} {unit:9} {'' if limit is None else f'≤ {limit:g}'}",
            flush=True,
        )


def _quantile(samples: list[Any], share: float) -> float:
    """As Prometheus estimates it from a histogram's buckets."""
    buckets = [(float(s.labels["le"]), s.value) for s in samples if s.name.endswith("_bucket")]
    wanted, lower, before = share * buckets[-1][1], 0.0, 0.0
    for upper, count in buckets:
        if count >= wanted:
            if upper == float("inf"):
                return lower
            return lower + (upper - lower) * (wanted - before) / max(1.0, count - before)
        lower, before = upper, count
    return lower


async def _get(kuberay: FakeKubeRay, url: str) -> str:
    return await kuberay.api.text(url)


async def _true(value: bool) -> bool:
    return value


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def as_operator(ray_url: str, arguments: list[str]) -> None:
    """The operator itself, told where the fake heads are."""
    from rljob_operator import log
    from rljob_operator.main import Operator, parse

    def head_url(cluster: str, namespace: str, port: int) -> str:
        return f"{ray_url}/{namespace}/{cluster}/{port}"

    log.set_up(sys.stdout)
    sys.exit(asyncio.run(Operator(*parse(arguments), head_url=head_url).run()))


async def measure(folder: Path, jobs: int, idle_seconds: float) -> list[Figure]:
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
    if sys.argv[1:2] == ["--as-operator"]:
        as_operator(sys.argv[2], sys.argv[3:])
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
            sys.exit(f"{missing}: see benchmarks/controller.py")
    if options.json:
        machine = describe_machine(["kopf", "lightkube", "aiohttp"]) | {"jobs": jobs}
        document = {"machine": machine, "figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
