"""The RayCluster of a job: a head without devices, one worker a node, warehouses beside them.

Written for KubeRay 1.6.2. `suspend` is left out: Kueue may own it, and the operator deletes a
cluster rather than suspend it.
"""

from dataclasses import dataclass

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import pods
from rljob_api.topology.worker_pods import is_ascend, object_store_bytes
from rljob_operator.build import ports
from rljob_operator.build.accelerators import ray_resources
from rljob_operator.build.gang import gang
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, Role, child_name, metadata
from rljob_operator.build.pods import pod_template
from rljob_operator.build.resources import warehouses_per_pod
from rljob_operator.settings import Settings

RAY_WAREHOUSE = "rljob_warehouse"
NO_NEW_HEAD = {"ray.io/disable-provisioned-head-restart": "true"}
"""A head that is lost stays lost: its successor would know no job and look healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """How many pods, where it is not what the spec says. released: the head alone, for its logs.
    workers: worker pods. leaving: worker pods that go, where there are to be fewer."""

    released: bool = False
    workers: int | None = None
    leaving: tuple[str, ...] = ()


def ray_cluster(
    job: RLJob, identity: Identity, settings: Settings, *, name: str, groups: Groups
) -> Manifest:
    """The RayCluster. job: passed the rules."""
    placing = gang(job.spec.scheduling, cluster=name)
    meta = metadata(identity, name, component="cluster")
    meta["labels"] |= placing.labels
    meta["annotations"] = dict(NO_NEW_HEAD)
    spec, counts = job.spec, pods(job.spec)
    share = 0 if groups.released else 1
    workers = counts.worker if groups.workers is None else groups.workers

    def template(role: Role) -> Manifest:
        return pod_template(job, identity, settings, role=role, gang=placing)

    store = object_store_bytes(ascend=is_ascend(spec.accelerator))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": meta,
        "spec": {
            "rayVersion": settings.ray_version,
            "authOptions": {"mode": "token", "secretName": child_name(identity)},
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0"} | _start_parameters(store),
                "template": template("head"),
            },
            "workerGroupSpecs": [
                {
                    "groupName": role,
                    "replicas": replicas,
                    "minReplicas": replicas,
                    "maxReplicas": replicas,
                    "numOfHosts": 1,
                    "rayStartParams": _start_parameters(store),
                    "resources": offered,
                    **_leaving(role, groups),
                    "template": template(role),
                }
                for role, replicas, offered in _groups(
                    job, share * workers, share * counts.warehouse
                )
            ],
        },
    }


def _leaving(role: Role, groups: Groups) -> Manifest:
    """Which pods KubeRay takes away; without names it would take any."""
    if role != "worker" or not groups.leaving:
        return {}
    return {"scaleStrategy": {"workersToDelete": list(groups.leaving)}}


def _groups(job: RLJob, workers: int, warehouses: int) -> list[tuple[Role, int, dict[str, str]]]:
    """(role, pods, Ray resources of each). Actors ask for these resources and for no CPU."""
    room = {RAY_WAREHOUSE: str(warehouses_per_pod(job.spec))}
    return [
        ("worker", workers, ray_resources(job.spec.accelerator)),
        ("warehouse", warehouses, room),
    ]


def _start_parameters(object_store_bytes: int) -> dict[str, str]:
    """Parameters of `ray start`. num-cpus of the head is 0 so that no actor lands beside the driver."""
    return {
        "node-manager-port": str(ports.NODE_MANAGER),
        "object-manager-port": str(ports.OBJECT_MANAGER),
        "runtime-env-agent-port": str(ports.RUNTIME_ENVIRONMENT_AGENT),
        "min-worker-port": str(ports.FIRST_WORKER),
        "max-worker-port": str(ports.LAST_WORKER),
        "object-store-memory": str(object_store_bytes),
    }
