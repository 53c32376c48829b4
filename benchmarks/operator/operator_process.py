"""The operator as a benchmark sees it: a process of its own, and its metrics."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families as families

AS_OPERATOR = ("-m", "benchmarks.operator.operator_process")
PACKAGES = ("kopf", "lightkube", "aiohttp")
Samples = dict[str, list[Any]]


class OperatorProcess:
    """`python -m rljob_operator`, but for where heads are; its metrics and what it costs. tag: of images."""

    def __init__(self, kubeconfig: Path, ray_url: str, log: Path, *, tag: str = "1") -> None:
        self._port, self._log = _free_port(), log
        images = [f"--{name}-image=example.com/{name}:{tag}" for name in ("runtime", "ascend")]
        command = [sys.executable, *AS_OPERATOR, ray_url, f"--port={self._port}"]
        environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*command, *images], stdout=file, stderr=file, env=environment
            )
        self._usage = psutil.Process(self._process.pid)

    async def metrics(self) -> Samples:
        """Samples by name; {} while it does not answer."""
        text = await self._get("metrics")
        return {family.name: family.samples for family in families(text)} if text else {}

    async def is_ready_leader(self) -> bool:
        """Whether its caches are filled and it acts."""
        return (await self._get("readyz")).startswith("ok leader")

    def processor_seconds(self) -> float:
        """Since its start."""
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def resident_mib(self) -> float:
        """Its memory now."""
        return float(self._usage.memory_info().rss / 2**20)

    async def until(self, what: str, holds: Callable[[], Any], *, seconds: float) -> None:
        """Wait until `holds`, a coroutine function, gives true; ends the benchmark otherwise."""
        try:
            async with asyncio.timeout(seconds):
                while not await holds():
                    if self._process.poll() is not None:
                        end = self._log.read_text()[-1000:]
                        sys.exit(f"not {what}: the operator ended: {end}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            sys.exit(f"not {what} within {seconds:.0f} s")

    def stop(self) -> None:
        """End it as Kubernetes does, and wait."""
        self._process.terminate()
        assert self._process.wait(timeout=60) == 0

    def kill(self) -> None:
        """End it in any case."""
        self._process.kill()
        self._process.wait()

    async def _get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self._port}/{path}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await answer.text() if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""


def quantile(samples: Sequence[Any], share: float, before: Sequence[Any] = ()) -> float:
    """As Prometheus estimates it from a histogram's buckets. before: an earlier state, not counted."""
    earlier = {s.labels["le"]: s.value for s in before if s.name.endswith("_bucket")}
    buckets = [
        (float(s.labels["le"]), s.value - earlier.get(s.labels["le"], 0.0))
        for s in samples
        if s.name.endswith("_bucket")
    ]
    wanted, lower, passed = share * buckets[-1][1], 0.0, 0.0
    for upper, count in buckets:
        if count >= wanted:
            if upper == float("inf"):
                return lower
            return lower + (upper - lower) * (wanted - passed) / max(1.0, count - passed)
        lower, passed = upper, count
    return lower


def total(samples: Sequence[Any], ending: str, **labels: str) -> float:
    """Sum of the samples whose name ends so and which have these labels."""
    return sum(
        s.value
        for s in samples
        if s.name.endswith(ending) and all(s.labels.get(k) == v for k, v in labels.items())
    )


def be_operator() -> None:
    """What `OperatorProcess` starts: the operator, told where heads are."""
    from rljob_operator import log
    from rljob_operator.arguments import parse
    from rljob_operator.main import Operator

    ray_url, *arguments = sys.argv[1:]

    def head_url(cluster: str, namespace: str, port: int) -> str:
        return f"{ray_url}/{namespace}/{cluster}/{port}"

    log.set_up(sys.stdout)
    sys.exit(asyncio.run(Operator(*parse(arguments), head_url=head_url).run()))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    be_operator()
