"""A job as a Workload of Kueue: what it asks for, what it was admitted to, what its owner writes there.

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
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, child_name, metadata
from rljob_operator.build.pods import pod_template
from rljob_operator.settings import Settings

KUEUE = "kueue.x-k8s.io/v1beta2"
ASKED = "rljob.io/asked"
"""Annotation: sum of what the Workload asks for, by which it is known to be up to date."""
TOPOLOGY_REQUESTS = {
    "kueue.x-k8s.io/podset-required-topology": "required",
    "kueue.x-k8s.io/podset-preferred-topology": "preferred",
}
"""Annotations of pod templates, as of Kueue's own jobs."""
MESSAGE_BYTES = 1024


def workload(
    job: RLJob, identity: Identity, settings: Settings, *, priority: int | None = None
) -> Manifest:
    """The Workload, a set of pods a role. priority: the value of the job's class, None without one."""
    spec = _asked(job, identity, settings)
    meta = metadata(identity, child_name(identity), component="workload")
    meta["labels"]["kueue.x-k8s.io/job-uid"] = identity.uid
    meta["annotations"] = {ASKED: _sum(spec)}
    if priority is not None:
        spec["priority"] = priority
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": meta, "spec": spec}


def is_outdated(found: Manifest, job: RLJob, identity: Identity, settings: Settings) -> bool:
    """Whether the Workload asks for something else than the job does now."""
    annotations = found["metadata"].get("annotations", {})
    return bool(annotations.get(ASKED) != _sum(_asked(job, identity, settings)))


def held_workers(found: Manifest) -> int | None:
    """Worker pods that Kueue holds quota for, None while it holds none. What was given back does not come
    again before the next admission."""
    status = found.get("status", {})
    assigned = assignments(found).get("worker")
    if assigned is None:
        return None
    asked = asked_workers(found)
    back = {pods["name"]: pods["count"] for pods in status.get("reclaimablePods", [])}
    return int(min(assigned.get("count", asked), asked - back.get("worker", 0)))


def wanted_workers(job: RLJob) -> int:
    """Worker pods that the job asks for, spare ones among them."""
    counts = pods(job.spec)
    return counts.worker + counts.spare


def asked_workers(found: Manifest) -> int:
    """Worker pods that the Workload asks for."""
    sets = {pods["name"]: pods for pods in found["spec"]["podSets"]}
    return int(sets["worker"]["count"])


def granted(job: RLJob, found: Manifest | None) -> RLJob:
    """The job on the worker pods that Kueue has admitted: where they are fewer than it asks for, with as
    many devices that generate as they have room for."""
    held = held_workers(found) if found is not None else None
    spec, counts = job.spec, pods(job.spec)
    if held is None or not is_elastic(spec) or held >= wanted_workers(job):
        return job
    own = roles(spec.placement, spec.accelerator)
    room = (held - counts.spare) * spec.accelerator.devices_per_node - own.update
    least = spec.scheduling.min_rollout_devices or spec.rollout.parallelism.model_devices
    numbers = range(min(room, own.rollout), least, -1)
    return scaled(job, next((n for n in numbers if not scale_problems(job, n)), least))


def conditions_of(found: Manifest) -> dict[str, Manifest]:
    """The Workload's conditions by type."""
    return {c["type"]: c for c in found.get("status", {}).get("conditions", [])}


def quota_released(found: Manifest, now: str) -> Manifest:
    """The status of an evicted Workload whose pods are gone: Kueue may queue it again. now: as Kubernetes
    writes times."""
    evicted = conditions_of(found).get("Evicted", {})
    why = (str(evicted.get("reason", "Pending")), str(evicted.get("message", "")))
    again = "True" if why[0] in ("Preempted", "NodeFailures") else "False"  # else Kueue says when
    status = {k: v for k, v in found["status"].items() if k not in ("admission", "reclaimablePods")}
    for kind, value, reason, message in (
        ("QuotaReserved", "False", "Pending", why[1]),
        ("Admitted", "False", "NoReservation", "The workload has no reservation"),
        ("PodsReady", "False", "WaitForStart", "its pods are gone"),
        ("Requeued", again, *why),
    ):
        status = _with(found, status, kind, value, reason, message, now)
    return status


def finished(found: Manifest, *, succeeded: bool, message: str, now: str) -> Manifest:
    """The status of the Workload of a job that has ended and holds no devices any more."""
    reason = "Succeeded" if succeeded else "Failed"
    return _with(found, found.get("status", {}), "Finished", "True", reason, message, now)


def told_of_pods(found: Manifest, *, ready: bool, workers: int | None, now: str) -> Manifest:
    """The status of the Workload of a job that runs. ready: all its pods are. workers: those that it still
    needs, where it gives some back."""
    before = conditions_of(found).get("PodsReady", {})
    lost = before.get("status") == "True" or before.get("reason") in (
        "WaitForRecovery",
        "Recovered",
    )
    reason = (
        ("Recovered" if ready else "WaitForRecovery")
        if lost
        else ("Started" if ready else "WaitForStart")
    )
    status = dict(found.get("status", {}))
    if before.get("status") != str(ready):
        message = "all pods are ready" if ready else "not all pods are ready"
        status = _with(found, status, "PodsReady", str(ready), reason, message, now)
    if workers is not None:
        back = asked_workers(found) - workers
        status["reclaimablePods"] = [{"name": "worker", "count": back}]
    return status


def _asked(job: RLJob, identity: Identity, settings: Settings) -> Manifest:
    scheduling, counts = job.spec.scheduling, pods(job.spec)
    placing = gang(scheduling, settings, cluster=child_name(identity))
    numbers = {
        "head": counts.head,
        "worker": wanted_workers(job),
        "warehouse": counts.warehouse + counts.spare,
    }
    sets: list[Manifest] = []
    for role in ROLES:
        template = pod_template(job, identity, settings, role=role, gang=placing)
        annotations = template["metadata"].get("annotations", {})
        topology = {
            of: annotations[key] for key, of in TOPOLOGY_REQUESTS.items() if key in annotations
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
    found: Manifest, status: Manifest, kind: str, value: str, reason: str, message: str, now: str
) -> Manifest:
    """The status with a condition, which keeps its time where its value stays."""
    others = [c for c in status.get("conditions", []) if c["type"] != kind]
    before: Manifest = next((c for c in status.get("conditions", []) if c["type"] == kind), {})
    condition = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        "lastTransitionTime": before["lastTransitionTime"]
        if before.get("status") == value
        else now,
        "observedGeneration": found["metadata"].get("generation", 0),
    }
    return {**status, "conditions": [*others, condition]}
