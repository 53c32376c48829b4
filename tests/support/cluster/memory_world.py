"""One job on a cluster in memory, which does what it is told at once; time goes 5 s a pass."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster_jobs import JOB, SETTINGS, merged
from lightkube import SingleConfig
from lightkube.config.models import Cluster, Context, User
from memory_api import Door, Manifest, MemoryApi
from memory_ray import MemoryRay
from pauses import Pauses

import rljob_operator
from rljob_operator.decide.draft import rfc3339
from rljob_operator.kube.kube_client import Kube
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_operator.watch.cache import KINDS, Cache, JobKey, Kind
from rljob_operator.watch.fault_watch import ChipFaults

NODE = "node-1"
PACKAGE = Path(rljob_operator.__file__).parent
WATCHED: tuple[Kind, ...] = (*KINDS, "Workload")
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
KEY = JobKey("team", "spell-backward")
PATH = f"/apis/rljob.io/v1alpha1/namespaces/{KEY.namespace}/rljobs/{KEY.name}"


class MemoryKube:
    """One client for all lives."""

    def __init__(self) -> None:
        config = SingleConfig(
            context_name="test",
            context=Context(cluster="test"),
            cluster=Cluster(server="http://memory"),
            user=User(token="t"),
        )
        self.door, self.metrics = Door(), Metrics(version="test")
        self.kube = Kube(metrics=self.metrics, config=config, transport=self.door)


class World:
    """One job on a cluster that does what it is told at once; time goes 5 s a pass."""

    def __init__(self, spec: Manifest, *, lose_answers: int) -> None:
        self.now = 1_800_000_000.0
        self.pauses = Pauses(PACKAGE)
        self.api = MemoryApi(self.pauses, lambda: rfc3339(self.now))
        self.ray = MemoryRay(self.pauses, lose_answers=lose_answers)
        self.api.write(PATH, merged(JOB, {"metadata": {"namespace": "team"}, "spec": spec}))
        self.phases: list[str] = []
        self.most_live = 0
        self.faults = ChipFaults()

    def copy(self, kill_at: int | None) -> "World":
        """The same world, in which the operator dies at a pause to come."""
        other = copy.copy(self)
        other.pauses = Pauses(PACKAGE, begin=self.pauses.count, kill_at=kill_at)
        other.api = self.api.copy(other.pauses, lambda: rfc3339(other.now))
        other.ray = self.ray.copy(other.pauses)
        other.phases = list(self.phases)
        return other

    @property
    def job(self) -> Manifest | None:
        return self.api.objects.get(PATH)

    @property
    def phase(self) -> str:
        return str((self.job or {}).get("status", {}).get("phase", ""))

    def set(self, **spec: Any) -> None:
        """What a user does."""
        assert self.job is not None
        self.api.write(PATH, {**self.job, "spec": self.job["spec"] | spec})

    def goes_on(self) -> None:
        """RayClusters get their pods, all ready, and lose them with their cluster."""
        self.now += 5
        clusters = {found["metadata"]["name"]: found for found in self.api.stored("RayCluster")}
        self.ray.heads |= clusters.keys()
        for gone in self.ray.heads - clusters.keys():
            self.ray.end_head(gone)
        self.most_live = max(self.most_live, sum(driver.lives for driver in self.ray.drivers))
        self.phases.append(self.phase)

    def make_of_cluster(self, kind: str, plural: str, name: str, **fields: Any) -> None:
        """An object of Kueue's that lives in no namespace."""
        manifest = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": name},
        }
        self.api.write(f"{KUEUE}/{plural}/{name}", manifest | fields)

    def workload(self) -> Manifest | None:
        """The job's Workload of Kueue."""
        return next(iter(self.api.stored("Workload")), None)

    def kueue_says(self, **conditions: str) -> None:
        """Conditions of the Workload from now on; QuotaReserved has it admitted to flavor npu."""
        workload = self.workload()
        assert workload is not None
        status = {k: v for k, v in workload.get("status", {}).items() if k != "conditions"}
        others = [
            c
            for c in workload.get("status", {}).get("conditions", [])
            if c["type"] not in conditions
        ]
        told = [
            {"type": kind, "status": value, "reason": "Preempted", "message": "for another one"}
            for kind, value in conditions.items()
        ]
        told = [one | {"lastTransitionTime": rfc3339(self.now)} for one in told]
        if conditions.get("QuotaReserved") == "True":
            sets = workload["spec"]["podSets"]
            assignments = [
                {k: s[k] for k in ("name", "count")} | {"flavors": {"cpu": "npu"}} for s in sets
            ]
            status["admission"] = {"clusterQueue": "all", "podSetAssignments": assignments}
        path = f"{KUEUE}/namespaces/{KEY.namespace}/workloads/{workload['metadata']['name']}"
        self.api.write(path, {**workload, "status": {**status, "conditions": others + told}})

    def chips(self, *, unhealthy: str) -> None:
        """What is reported from now on of the node that all pods are on."""
        lists = {"huawei.com/Ascend910-NetworkUnhealthy": unhealthy}
        told = json.dumps({"DeviceInfo": {"DeviceList": lists}})
        name = {"name": f"mindx-dl-deviceinfo-{NODE}"}
        self.faults = ChipFaults(lambda: self.now)
        self.faults.take([{"metadata": name, "data": {"DeviceInfoCfg": told}}])

    def cache(self) -> Cache:
        """What informers of a process that starts now see."""
        cache = Cache(WATCHED)
        pods = [pod for c in self.api.stored("RayCluster") for pod in pods_of(c)]
        for kind in WATCHED:
            found = pods if kind == "Pod" else self.api.stored(kind)
            cache.replace(kind, found, began=0.0, namespaces=None)
        return cache


def pods_of(cluster: Manifest) -> list[Manifest]:
    groups = cluster["spec"]["workerGroupSpecs"]
    counts = {"head": 1} | {group["groupName"]: group["replicas"] for group in groups}
    name, job = cluster["metadata"]["name"], cluster["metadata"]["labels"]["rljob.io/job"]
    return [
        {
            "metadata": {
                "name": f"{name}-{role}-{number}",
                "namespace": KEY.namespace,
                "uid": f"{name}-{role}-{number}",
                "labels": {"rljob.io/job": job, "rljob.io/role": role, "ray.io/cluster": name},
            },
            "spec": {"nodeName": NODE},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for role, count in counts.items()
        for number in range(count)
    ]


def make_operator(world: World, kube: MemoryKube, tokens: dict[str, str]) -> Reconciler:
    class Later:
        def add_after(self, key: JobKey, seconds: float) -> None:
            pass  # every pass is followed by the next

    return Reconciler(
        kube=kube.kube,
        cache=Cache(),
        queue=Later(),
        session=world.ray,  # type: ignore[arg-type]
        metrics=kube.metrics,
        settings=replace(SETTINGS, emulated_device_plugin=True, kueue=True, volcano=True),
        faults=world.faults,
        wall=lambda: world.now,
        clock=lambda: world.now,
        head_url=lambda cluster, namespace, port: f"http://{cluster}:{port}",
        _tokens=dict(tokens),
    )
