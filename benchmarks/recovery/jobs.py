"""The jobs that are struck, and where they run. Called by the parts of the benchmark."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.recovery.struck_run import StruckRun
from rljob_api.topology.ray_resources import EMULATED

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
WARM_UP = {"targetAccuracy": 0.2, "maxSteps": 120}
RAY_BYTES = 2**27


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where runs are: processes of this machine, or, with raylets, a Ray of so many on it. folder: of all
    runs. environment: of their drivers. roots: whose children belong to them."""

    folder: Path
    raylets: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    roots: tuple[int, ...] = ()

    def run(self, name: str, job: Mapping[str, Any]) -> StruckRun:
        """One that is not there yet."""
        return StruckRun(
            job, self.folder / name, environment=self.environment, elsewhere=self.roots
        )

    def accelerator(self, devices: int) -> dict[str, Any]:
        """So many devices, shared by the raylets where there are any."""
        nodes = min(max(1, self.raylets), devices)
        return {"type": "emulated", "nodes": nodes, "devicesPerNode": devices // nodes}


@contextlib.contextmanager
def machine(folder: Path, raylets: int) -> Iterator[Machine]:
    """Without raylets there is no Ray. Ray ends with the context."""
    if not raylets:
        yield Machine(folder=folder)
        return
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 4, "resources": {EMULATED: 4}, "object_store_memory": RAY_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        for _ in range(raylets - 1):
            cluster.add_node(**node)
        started = [each for one in cluster.list_all_nodes for each in one.all_processes["raylet"]]
        yield Machine(
            folder=folder,
            raylets=raylets,
            environment={
                "RAY_ADDRESS": cluster.address,
                "RLJOB_DOCK_DIRECTORY": str(folder / "sockets"),
            },
            roots=tuple(each.process.pid for each in started),
        )
    finally:
        cluster.shutdown()


def job_of(
    accelerator: Mapping[str, Any],
    parallelism: Mapping[str, int],
    prompts: int = 8,
    **changes: Any,
) -> dict[str, Any]:
    """The quickstart with so many prompts a step; all that are made so begin with the same weights."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    del spec["evaluation"]
    spec["model"]["warmup"] = WARM_UP
    spec["batch"] |= {"globalBatchSize": prompts}
    spec["algorithm"] = {"name": "grpo", "params": {"clipHigh": 0.28}}
    spec["update"]["parallelism"] = dict(parallelism)
    spec["accelerator"] = dict(accelerator)
    spec |= changes
    return job
