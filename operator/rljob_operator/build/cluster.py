"""The RayCluster of a job: a head without devices, one worker per node, and warehouses next to them. Pods of
spare nodes are like the others: the run decides which of them are spare.

Written for KubeRay 1.6.2. `suspend` is left out: Kueue may own it, and the operator deletes a cluster instead
of suspending it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.devices import pods
from rljob_api.topology.worker_pods import is_ascend, object_store_bytes
from rljob_operator.build import ports
from rljob_operator.build.accelerators import placing_annotations, ray_resources
from rljob_operator.build.gang import gang, kept_labels
from rljob_operator.build.grants import PodGrant, with_grant
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, Role, child_name, metadata, of_users
from rljob_operator.build.pods import avoided_nodes, avoiding_nodes, image_of, pod_template
from rljob_operator.build.resources import warehouses_per_pod
from rljob_operator.build.spares import warm_resources
from rljob_operator.settings import Settings

RAY_WAREHOUSE = "rljob_warehouse"
NO_NEW_HEAD = {"ray.io/disable-provisioned-head-restart": "true"}
"""A lost head is not replaced: its successor would have no job and look healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverrides:
    """Numbers of pods that differ from the spec. released: only the head, for its logs. workers: worker pods.
    leaving: worker pods that are removed if there are to be fewer. avoid: nodes that new worker pods avoid if
    they can; KubeRay does not move existing pods. grants: what Kueue's admission adds to the pods of each
    role."""

    released: bool = False
    workers: int | None = None
    leaving: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    grants: Mapping[Role, PodGrant] = field(default_factory=dict)


def ray_cluster(
    job: RLJob, identity: JobIdentity, settings: Settings, *, name: str, groups: GroupOverrides
) -> Manifest:
    """Return the RayCluster. job: passed the rules."""
    placing = gang(job.spec.scheduling, settings, cluster=name)
    meta = metadata(identity, name, component="cluster")
    meta["labels"] = of_users(job.metadata.labels) | meta["labels"] | placing.labels
    # KubeRay copies annotations to the PodGroup, if it makes one.
    annotations = NO_NEW_HEAD | placing_annotations(job.spec)
    meta["annotations"] = of_users(job.metadata.annotations) | annotations
    spec, counts = job.spec, pods(job.spec)
    share = 0 if groups.released else 1
    workers = counts.worker + counts.spare if groups.workers is None else groups.workers

    def template(role: Role) -> Manifest:
        """Return the pod template of a role, with what Kueue granted it."""
        avoid = groups.avoid if role == "worker" else ()
        pod = pod_template(job, identity, settings, role=role, gang=placing, avoid=avoid)
        return with_grant(pod, groups.grants[role]) if role in groups.grants else pod

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


def updated_cluster(living: Manifest, desired: Manifest) -> Manifest:
    """Return the existing RayCluster with the desired numbers of pods and avoided nodes. Its pods run an
    attempt, so a replaced pod must match the others, even if another version of the operator made them."""
    spec = {key: living["spec"].get(key, value) for key, value in desired["spec"].items()}
    there = {group["groupName"]: group for group in living["spec"]["workerGroupSpecs"]}
    spec["workerGroupSpecs"] = [
        _updated_group(there.get(group["groupName"], group), group)
        for group in desired["spec"]["workerGroupSpecs"]
    ]
    meta = desired["metadata"] | {"labels": kept_labels(living, desired)}
    return desired | {"metadata": meta, "spec": spec}


def _updated_group(living: Manifest, desired: Manifest) -> Manifest:
    counts = ("replicas", "minReplicas", "maxReplicas", "scaleStrategy")
    group = {key: value for key, value in living.items() if key not in counts}
    group |= {key: desired[key] for key in counts if key in desired}
    if "template" in group:
        group["template"] = avoiding_nodes(group["template"], avoided_nodes(desired["template"]))
    return group


def images_of(spec: RLJobSpec, settings: Settings) -> set[str]:
    """Return the images that a job's pods get from this operator."""
    roles: tuple[Role, ...] = ("head", "worker", "warehouse")
    return {image_of(spec, settings, role=role) for role in roles}


def pod_images(cluster: Manifest) -> set[str]:
    """Return the images of a RayCluster's pods."""
    spec = cluster.get("spec", {})
    groups = [spec.get("headGroupSpec", {}), *spec.get("workerGroupSpecs", [])]
    pods = [group["template"]["spec"] for group in groups if "template" in group]
    return {pod["containers"][0]["image"] for pod in pods}


def _leaving(role: Role, groups: GroupOverrides) -> Manifest:
    """Return the pods that KubeRay removes; without names it would remove any."""
    if role != "worker" or not groups.leaving:
        return {}
    return {"scaleStrategy": {"workersToDelete": list(groups.leaving)}}


def _groups(job: RLJob, workers: int, warehouses: int) -> list[tuple[Role, int, dict[str, str]]]:
    """Return (role, pods, Ray resources of each). Actors request these resources and no CPU."""
    room = {RAY_WAREHOUSE: str(warehouses_per_pod(job.spec))}
    return [
        ("worker", workers, ray_resources(job.spec.accelerator) | warm_resources(job.spec)),
        ("warehouse", warehouses, room),
    ]


def _start_parameters(object_store_bytes: int) -> dict[str, str]:
    """Return the parameters of `ray start`. num-cpus of the head is 0 so that no actor is placed next to the
    driver."""
    return {
        "node-manager-port": str(ports.NODE_MANAGER),
        "object-manager-port": str(ports.OBJECT_MANAGER),
        "runtime-env-agent-port": str(ports.RUNTIME_ENVIRONMENT_AGENT),
        "min-worker-port": str(ports.FIRST_WORKER),
        "max-worker-port": str(ports.LAST_WORKER),
        "object-store-memory": str(object_store_bytes),
    }
