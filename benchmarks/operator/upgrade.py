"""`helm upgrade` from the last release's chart to this one while RLJobs run, on a real API server.

KubeRay, kubelets and Ray are fakes, as in `controller`; needs helm, too. The operator before is this one with
the images of another release, since no other one's code is here: what a release changes in RayClusters is
there all the same. `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks import ROOT
from benchmarks.operator.controller import NAMESPACE, WAIT_SECONDS, Measurement
from benchmarks.operator.operator_process import PACKAGES, OperatorProcess
from benchmarks.support.figures import Figures

sys.path.append(str(ROOT / "tests" / "support" / "cluster"))

from api_server import ApiServer, ApiServerMissing, api_server
from fake_kuberay import RLJOBS, FakeKubeRay
from fake_ray import FakeRay

LAST = ROOT / "tests" / "fixtures" / "last_release" / "chart.tgz"
CHART = ROOT / "helm" / "rljob"
CLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
SERVED_SECONDS = 60.0


class Upgrade(Measurement):
    """All jobs run under an operator, and go on under the next."""

    async def run(self, idle_seconds: float) -> None:
        log = self.server.folder / "operator.log"
        url = self.ray.head_url("", "", 0).removesuffix("///0")
        operator = OperatorProcess(self.server.kubeconfig(), url, log, tag="1")
        try:
            await operator.until("leader", operator.is_ready_leader, seconds=WAIT_SECONDS)
            self.used, self.servers_used = operator.processor_seconds(), self._servers_seconds()
            await self._create_all()
            await self._reach_running(operator)
            self.figures = Figures()  # those of before belong to `controller`
            before, began = self._clusters(), time.monotonic()
            await asyncio.to_thread(helm, self.server, "upgrade", str(CHART))
            self.figures.add("helm upgrade", time.monotonic() - began, "s")
            operator.stop()
        finally:
            operator.kill()
        await self._goes_on(log, url, before, idle_seconds)

    async def _goes_on(
        self, log: Path, url: str, before: dict[str, int], idle_seconds: float
    ) -> None:
        writes, began = await self._own_writes(), time.monotonic()
        operator = OperatorProcess(self.server.kubeconfig(), url, log, tag="2")
        try:
            await operator.until("ready", operator.is_ready_leader, seconds=WAIT_SECONDS)
            self.figures.add(
                "the next operator: caches filled after", time.monotonic() - began, "s"
            )
            await self._until_quiet()
            written = sum((await self._own_writes()).values()) - sum(writes.values())
            self.figures.add("writes while it looks at all jobs", written, "")
            await self._idle(operator, idle_seconds)
            listed = self.server.request("GET", f"{RLJOBS}/namespaces/{NAMESPACE}/rljobs")
            status = [job["status"] for job in listed.body["items"]]
            self.figures.add("jobs", len(status), "")
            ended = sum(s["phase"] != "Running" or s.get("attempt", 0) != 0 for s in status)
            self.figures.add("attempts ended", ended, "", 0)
            changed = sum(before.get(name) != of for name, of in self._clusters().items())
            self.figures.add("RayClusters made or changed", changed, "", 0)
            drivers = len(self.ray.drivers) - self.jobs
            self.figures.add("drivers started again", drivers, "", 0)
            operator.stop()
        finally:
            operator.kill()

    def _clusters(self) -> dict[str, int]:
        """Generation of each, which rises with its spec."""
        found = self.server.request("GET", CLUSTERS).body["items"]
        return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}


def helm(server: ApiServer, verb: str, *words: str) -> None:
    """Install or upgrade the release, and wait until its RLJobs are served."""
    program = shutil.which("helm") or sys.exit("there is no helm on PATH")
    folders = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    environment = os.environ | dict.fromkeys(folders, str(server.folder / "helm"))
    keep = ["--reset-then-reuse-values"] if verb == "upgrade" else []
    subprocess.run(
        [program, verb, "rljob", *words, *keep, "--namespace", "rljob-system"],
        env=environment | {"KUBECONFIG": str(server.kubeconfig())},
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=True,
    )
    version = "v1beta1" if verb == "upgrade" else "v1alpha1"
    deadline = time.monotonic() + SERVED_SECONDS
    while server.request("GET", f"/apis/rljob.io/{version}/rljobs", accept="*/*").code != 200:
        assert time.monotonic() < deadline, f"{version} is not served after {SERVED_SECONDS:g} s"
        time.sleep(0.1)


async def measure(folder: Path, jobs: int, idle_seconds: float) -> Figures:
    """All figures of one run."""
    with api_server(folder, rljobs=False) as server:
        for namespace in (NAMESPACE, "rljob-system"):
            server.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        helm(server, "install", str(LAST))
        async with AsyncExitStack() as stack:
            ray = await stack.enter_async_context(FakeRay())
            kuberay = await stack.enter_async_context(FakeKubeRay(server, ray))
            measurement = Upgrade(server, ray, kuberay, jobs)
            await measurement.run(idle_seconds)
    return measurement.figures


def main() -> None:
    """Measure once and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            figures = asyncio.run(measure(Path(folder), options.jobs, options.idle))
        except ApiServerMissing as missing:
            sys.exit(f"{missing}: see benchmarks/operator/controller.py")
    if options.json:
        figures.write(options.json, packages=PACKAGES, facts={"jobs": options.jobs})
    if missed := figures.missed():
        sys.exit(f"missed: {', '.join(figure.name for figure in missed)}")


if __name__ == "__main__":
    main()
