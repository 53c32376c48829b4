"""The RayCluster of a job: a head without devices, one worker a node, warehouses beside them. Pods of spare
nodes are like the others: which of them are spare, the run decides.

Written for KubeRay 1.6.2. `suspend` is left out: Kueue may own it, and the operator deletes a
cluster rather than suspend it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.devices import pods
from rljob_api.topology.worker_pods import is_ascend, object_store_bytes
from rljob_operator.build import ports
from rljob_operator.build.accelerators import placing_annotations, ray_resources
from rljob_operator.build.gang import gang, kept_labels
from rljob_operator.build.grants import Grant, placed
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, Role, child_name, metadata, of_users
from rljob_operator.build.pods import image_of, keeping_off, kept_off, pod_template
from rljob_operator.build.resources import warehouses_per_pod
from rljob_operator.build.spares import warm_resources
from rljob_operator.settings import Settings

RAY_WAREHOUSE = "rljob_warehouse"
NO_NEW_HEAD = {"ray.io/disable-provisioned-head-restart": "true"}
"""A head that is lost stays lost: its successor would know no job and look healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """How many pods, where it is not what the spec says. released: the head alone, for its logs.
    workers: worker pods. leaving: worker pods that go, where there are to be fewer. avoid: nodes that new
    worker pods keep off where they can; KubeRay leaves pods that are there alone. grants: what Kueue's
    admission adds to the pods of each role."""

    released: bool = False
    workers: int | None = None
    leaving: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    grants: Mapping[Role, Grant] = field(default_factory=dict)


def ray_cluster(
    job: RLJob, identity: Identity, settings: Settings, *, name: str, groups: Groups
) -> Manifest:
    """The RayCluster. job: passed the rules."""
    placing = gang(job.spec.scheduling, settings, cluster=name)
    meta = metadata(identity, name, component="cluster")
    meta["labels"] = of_users(job.metadata.labels) | meta["labels"] | placing.labels
    # KubeRay copies annotations to the PodGroup, where it makes it.
    own = NO_NEW_HEAD | placing_annotations(job.spec)
    meta["annotations"] = of_users(job.metadata.annotations) | own
    spec, counts = job.spec, pods(job.spec)
    share = 0 if groups.released else 1
    workers = counts.worker + counts.spare if groups.workers is None else groups.workers

    def template(role: Role) -> Manifest:
        avoid = groups.avoid if role == "worker" else ()
        made = pod_template(job, identity, settings, role=role, gang=placing, avoid=avoid)
        return placed(made, groups.grants[role]) if role in groups.grants else made

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
                    job, share * workers, share * (counts.warehouse + counts.spare)
                )
            ],
        },
    }


def kept(living: Manifest, wanted: Manifest) -> Manifest:
    """A RayCluster as it is, with the numbers of pods that are wanted and the nodes that they keep off. Its
    pods run an attempt: one that is made anew must be like the others, also where another version of the
    operator made them."""
    spec = {key: living["spec"].get(key, value) for key, value in wanted["spec"].items()}
    there = {group["groupName"]: group for group in living["spec"]["workerGroupSpecs"]}
    spec["workerGroupSpecs"] = [
        _kept_group(there.get(group["groupName"], group), group)
        for group in wanted["spec"]["workerGroupSpecs"]
    ]
    meta = wanted["metadata"] | {"labels": kept_labels(living, wanted)}
    return wanted | {"metadata": meta, "spec": spec}


def _kept_group(living: Manifest, wanted: Manifest) -> Manifest:
    counts = ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
    group = {key: value for key, value in living.items() if key not in counts}
    group |= {key: wanted[key] for key in counts if key in wanted}
    if "template" in group:
        group["template"] = keeping_off(group["template"], kept_off(wanted["template"]))
    return group


def images_of(spec: RLJobSpec, settings: Settings) -> set[str]:
    """The images that a job's pods get from this operator."""
    roles: tuple[Role, ...] = ("head", "worker", "warehouse")
    return {image_of(spec, settings, role=role) for role in roles}


def pod_images(cluster: Manifest) -> set[str]:
    """The images of a RayCluster's pods."""
    spec = cluster.get("spec", {})
    groups = [spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", [])]
    pods = [group["template"]["spec"] for group in groups if "template" in group]
    return {pod["containers"][0]["image"] for pod in pods}


def _leaving(role: Role, groups: Groups) -> Manifest:
    """Which pods KubeRay takes away; without names it would take any."""
    if role != "worker" or not groups.leaving:
        return {}
    return {"scaleStrategy": {"workersToDelete": list(groups.leaving)}}


def _groups(job: RLJob, workers: int, warehouses: int) -> list[tuple[Role, int, dict[str, str]]]:
    """(role, pods, Ray resources of each). Actors ask for these resources and for no CPU."""
    room = {RAY_WAREHOUSE: str(warehouses_per_pod(job.spec))}
    return [
        ("worker", workers, ray_resources(job.spec.accelerator) | warm_resources(job.spec)),
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
