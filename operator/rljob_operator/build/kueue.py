"""A job as a Workload of Kueue: what it requests, what it was admitted to, and the status that its owner
writes.

`apply` sends the manifest and the changes of the status, `observe` reads what Kueue wrote. Written for
kueue.x-k8s.io/v1beta2 (Kueue 0.15 to 0.19).
"""

import hashlib
import json

from rljob_api.check.scale_rules import scale_problems
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import pods, roles
from rljob_api.topology.elastic import is_elastic, scaled, worker_pods
from rljob_operator.build.gang import gang
from rljob_operator.build.grants import ROLES, assignments
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, child_name, metadata
from rljob_operator.build.pods import pod_template
from rljob_operator.settings import Settings

KUEUE = "kueue.x-k8s.io/v1beta2"
REQUEST_ANNOTATION = "rljob.io/asked"
"""Annotation with a checksum of the Workload's request, which shows whether it is up to date."""
TOPOLOGY_REQUESTS = {
    "kueue.x-k8s.io/podset-required-topology": "required",
    "kueue.x-k8s.io/podset-preferred-topology": "preferred",
}
"""Annotations of pod templates, the same as for Kueue's own jobs."""
MESSAGE_BYTES = 1024


def workload(
    job: RLJob, identity: JobIdentity, settings: Settings, *, priority: int | None = None
) -> Manifest:
    """Return the Workload, with one set of pods per role. priority: the value of the job's class, None
    without one."""
    spec = _workload_spec(job, identity, settings)
    meta = metadata(identity, child_name(identity), component="workload")
    meta["labels"]["kueue.x-k8s.io/job-uid"] = identity.uid
    meta["annotations"] = {REQUEST_ANNOTATION: _sum(spec)}
    if priority is not None:
        spec["priority"] = priority
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": meta, "spec": spec}


def is_outdated(workload: Manifest, job: RLJob, identity: JobIdentity, settings: Settings) -> bool:
    """Return whether the Workload requests something else than the job does."""
    annotations = workload["metadata"].get("annotations", {})
    return bool(
        annotations.get(REQUEST_ANNOTATION) != _sum(_workload_spec(job, identity, settings))
    )


def quota_workers(workload: Manifest) -> int | None:
    """Return the worker pods that Kueue holds quota for, or None without quota. Returned quota is not granted
    again before the next admission."""
    status = workload.get("status", {})
    assigned = assignments(workload).get("worker")
    if assigned is None:
        return None
    requested = workload_workers(workload)
    reclaimable = {pods["name"]: pods["count"] for pods in status.get("reclaimablePods", [])}
    return int(min(assigned.get("count", requested), requested - reclaimable.get("worker", 0)))


def requested_workers(job: RLJob) -> int:
    """Return the worker pods that the job requests, including spare ones."""
    counts = pods(job.spec)
    return counts.worker + counts.spare


def workload_workers(workload: Manifest) -> int:
    """Return the worker pods that the Workload requests."""
    sets = {pods["name"]: pods for pods in workload["spec"]["podSets"]}
    return int(sets["worker"]["count"])


def admitted_job(job: RLJob, workload: Manifest | None) -> RLJob:
    """Return the job on the worker pods that Kueue has admitted. If they are fewer than it requests, as many
    devices generate as they have room for."""
    admitted = quota_workers(workload) if workload is not None else None
    spec, counts = job.spec, pods(job.spec)
    if admitted is None or not is_elastic(spec) or admitted >= requested_workers(job):
        return job
    devices = roles(spec.placement, spec.accelerator)
    room = (admitted - counts.spare) * spec.accelerator.devices_per_node - devices.update
    least = spec.scheduling.min_rollout_devices or spec.rollout.parallelism.model_devices
    numbers = range(min(room, devices.rollout), least, -1)
    return scaled(job, next((n for n in numbers if not scale_problems(job, n)), least))


def conditions_of(workload: Manifest) -> dict[str, Manifest]:
    """Return the Workload's conditions by type."""
    return {c["type"]: c for c in workload.get("status", {}).get("conditions", [])}


def released_status(workload: Manifest, timestamp: str) -> Manifest:
    """Return the status of an evicted Workload whose pods are gone: Kueue may queue it again. timestamp: in
    Kubernetes' format."""
    evicted = conditions_of(workload).get("Evicted", {})
    why = (str(evicted.get("reason", "Pending")), str(evicted.get("message", "")))
    again = (
        "True" if why[0] in ("Preempted", "NodeFailures") else "False"
    )  # else Kueue decides when
    status = {
        k: v for k, v in workload["status"].items() if k not in ("admission", "reclaimablePods")
    }
    for kind, value, reason, message in (
        ("QuotaReserved", "False", "Pending", why[1]),
        ("Admitted", "False", "NoReservation", "The workload has no reservation"),
        ("PodsReady", "False", "WaitForStart", "its pods are gone"),
        ("Requeued", again, *why),
    ):
        status = _with(workload, status, kind, value, reason, message, timestamp)
    return status


def finished_status(
    workload: Manifest, *, succeeded: bool, message: str, timestamp: str
) -> Manifest:
    """Return the status of the Workload of a job that has ended and holds no more devices."""
    reason = "Succeeded" if succeeded else "Failed"
    return _with(
        workload, workload.get("status", {}), "Finished", "True", reason, message, timestamp
    )


def pods_status(
    workload: Manifest, *, ready: bool, workers: int | None, timestamp: str
) -> Manifest:
    """Return the status of the Workload of a running job. ready: all its pods are ready. workers: those that
    it still needs, if it returns some."""
    before = conditions_of(workload).get("PodsReady", {})
    lost = before.get("status") == "True" or before.get("reason") in (
        "WaitForRecovery",
        "Recovered",
    )
    reason = (
        ("Recovered" if ready else "WaitForRecovery")
        if lost
        else ("Started" if ready else "WaitForStart")
    )
    status = dict(workload.get("status", {}))
    if before.get("status") != str(ready):
        message = "all pods are ready" if ready else "not all pods are ready"
        status = _with(workload, status, "PodsReady", str(ready), reason, message, timestamp)
    if workers is not None:
        reclaimable = workload_workers(workload) - workers
        status["reclaimablePods"] = [{"name": "worker", "count": reclaimable}]
    return status


def _workload_spec(job: RLJob, identity: JobIdentity, settings: Settings) -> Manifest:
    """Return the spec of the Workload for the job."""
    scheduling, counts = job.spec.scheduling, pods(job.spec)
    placing = gang(scheduling, settings, cluster=child_name(identity))
    numbers = {
        "head": counts.head,
        "worker": requested_workers(job),
        "warehouse": counts.warehouse + counts.spare,
    }
    sets: list[Manifest] = []
    for role in ROLES:
        template = pod_template(job, identity, settings, role=role, gang=placing)
        annotations = template["metadata"].get("annotations", {})
        topology = {
            kind: annotations[key] for key, kind in TOPOLOGY_REQUESTS.items() if key in annotations
        }
        sets.append({"name": role, "count": numbers[role], "template": template})
        if topology:
            sets[-1]["topologyRequest"] = topology
        if role == "worker" and scheduling.min_rollout_devices is not None:
            least = worker_pods(job, scheduling.min_rollout_devices) + counts.spare
            sets[-1]["minCount"] = min(least, numbers["worker"])
    spec: Manifest = {"queueName": scheduling.queue, "podSets": sets}
    if scheduling.priority_class is not None:
        spec["priorityClassRef"] = {
            "group": "kueue.x-k8s.io",
            "kind": "WorkloadPriorityClass",
            "name": scheduling.priority_class,
        }
    return spec


def _sum(spec: Manifest) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def _with(
    workload: Manifest,
    status: Manifest,
    kind: str,
    value: str,
    reason: str,
    message: str,
    timestamp: str,
) -> Manifest:
    """Return the status with a condition, which keeps its time if its value stays."""
    others = [c for c in status.get("conditions", []) if c["type"] != kind]
    before: Manifest = next((c for c in status.get("conditions", []) if c["type"] == kind), {})
    condition = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        "lastTransitionTime": before["lastTransitionTime"]
        if before.get("status") == value
        else timestamp,
        "observedGeneration": workload["metadata"].get("generation", 0),
    }
    return {**status, "conditions": [*others, condition]}
