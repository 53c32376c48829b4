"""Convert the state for `decide`: manifests from the cache, and Ray's answers, as plain data.

Called by `reconcile`. Everything except `ask_ray` is pure.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api.check.layout_rules import copies_on_one_node
from rljob_api.check.load import read_job
from rljob_api.check.scale_rules import scale_problems
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.status import RLJobStatus
from rljob_api.topology.pod_names import CLUSTER_LABEL, ROLE_LABEL
from rljob_api.topology.worker_pods import is_ascend
from rljob_operator.build.cluster import images_of, pod_images
from rljob_operator.build.gang import is_queued_by_kueue, makes_workload
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.kueue import (
    admitted_job,
    conditions_of,
    is_outdated,
    quota_workers,
    requested_workers,
)
from rljob_operator.build.pods import avoided_nodes
from rljob_operator.decide.draft import unix
from rljob_operator.decide.model import Cluster, Observation, Pod, RayAnswer, Workload
from rljob_operator.driver.progress import Report
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.errors import OperatorError
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.settings import Settings
from rljob_operator.watch.cache import POD_CHIPS, TOO_LARGE, Cache, JobKey

LOG_LINES = 20
JOB_FIELDS = ("name", "namespace", "labels", "annotations")


def identity_of(rljob: Manifest) -> JobIdentity:
    """Return the identity of the job."""
    metadata = rljob["metadata"]
    return JobIdentity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
    )


def job_of(
    rljob: Manifest, settings: Settings | None = None
) -> tuple[RLJob | None, tuple[Problem, ...]]:
    """Return the job as the API reads it, or what is wrong with it. settings: it must be possible with
    them."""
    if TOO_LARGE in rljob:
        return None, (rljob[TOO_LARGE],)
    metadata = {key: rljob["metadata"][key] for key in JOB_FIELDS if key in rljob["metadata"]}
    document = {key: rljob.get(key) for key in ("apiVersion", "kind", "spec")}
    try:
        job = read_job({**document, "metadata": metadata})
    except InvalidJob as invalid:
        return None, tuple(invalid.problems)
    if settings is not None and (problems := installation_problems(job, settings)):
        return None, problems
    return job, ()


def installation_problems(job: RLJob, settings: Settings) -> tuple[Problem, ...]:
    """Return what the job requests and this installation, or any cluster, does not allow."""
    problems = list(copies_on_one_node(job.spec))
    if job.spec.dock.shared_memory == "required" and settings.shared_memory == "none":
        message = (
            "is required, but this operator gives the pods of a node no folder in common; use auto, or "
            "install the chart with sharedMemory.hostPath: true"
        )
        problems.append(Problem("spec.dock.sharedMemory", message))
    if (least := job.spec.scheduling.min_rollout_devices) is not None:
        path = "spec.scheduling.minRolloutDevices"
        problems += [Problem(path, problem.message) for problem in scale_problems(job, least)]
    accelerator = job.spec.accelerator
    if is_ascend(accelerator) and not (accelerator.bring_up or accelerator.accept_untested):
        message = (
            f"is {accelerator.type}, and no bring-up of such devices is named; run rljob doctor --bring-up "
            "on a node of this cluster and name the ConfigMap of its bring-up.json "
            "(spec.accelerator.bringUp), or set spec.accelerator.acceptUntested: true"
        )
        problems.append(Problem("spec.accelerator.type", message))
    return tuple(problems)


def status_of(rljob: Manifest) -> RLJobStatus:
    """Return the stored status; an unreadable one (of a removed version) counts as empty."""
    try:
        return RLJobStatus.model_validate(rljob.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return RLJobStatus()


def pod_of(manifest: Manifest) -> Pod:
    """Return what decisions need of a pod. Its first container is Ray's."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    container = _ray_container(status)
    deleted, scheduled = metadata.get("deletionTimestamp"), conditions.get("PodScheduled", {})
    created = metadata.get("creationTimestamp")
    moved = scheduled.get("lastTransitionTime") or created
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, "worker"),
        ready=_is(conditions, "Ready") and deleted is None,
        incarnation=f"{metadata['uid']}/{container.get('restartCount', 0)}",
        node=manifest.get("spec", {}).get("nodeName", ""),
        created=unix(created) if created else 0.0,
        chips=tuple(filter(None, metadata.get("annotations", {}).get(POD_CHIPS, "").split(","))),
        deleting_since=unix(deleted) if deleted else None,
        problem=_problem(conditions, container),
        exit_code=_exit_code(container),
        disrupted=_is(conditions, "DisruptionTarget"),
        no_room=scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable",
        moved=unix(moved) if moved else 0.0,
    )


def cluster_of(manifest: Manifest, *, images: set[str] | None = None) -> Cluster:
    """Return what decisions need of a RayCluster. Its `status.state` is not read: it stays ready forever.
    images: those that this operator uses for the job's pods."""
    conditions = {c["type"]: c for c in manifest.get("status", {}).get("conditions", [])}
    refused = conditions.get("ReplicaFailure", {})
    return Cluster(
        name=manifest["metadata"]["name"],
        uid=manifest["metadata"]["uid"],
        deleting="deletionTimestamp" in manifest["metadata"],
        suspended=bool(manifest.get("spec", {}).get("suspend", False)),
        workers=_workers(manifest),
        avoided=_avoided(manifest),
        refusal=refused.get("message", "") if refused.get("status") == "True" else "",
        outdated=images is not None and pod_images(manifest) != images,
    )


def workload_of(manifest: Manifest, *, requested: int, outdated: bool) -> Workload:
    """Return what decisions need of a Workload. requested: worker pods that the job requests."""
    conditions, quota = conditions_of(manifest), quota_workers(manifest)
    evicted = conditions.get("Evicted", {})
    ready = conditions.get("PodsReady")
    admission = manifest.get("status", {}).get("admission") or {}
    return Workload(
        name=manifest["metadata"]["name"],
        deleting="deletionTimestamp" in manifest["metadata"],
        admitted=_is(conditions, "Admitted"),
        reserved=_is(conditions, "QuotaReserved"),
        evicted=(evicted.get("message") or evicted["reason"]) if _is(conditions, "Evicted") else "",
        finished=_is(conditions, "Finished"),
        outdated=outdated,
        message=_kueues_words(manifest),
        cluster_queue=admission.get("clusterQueue", ""),
        pods_ready=None if ready is None else ready["status"] == "True",
        workers=quota or 0,
        requested=requested,
    )


def workload_of_job(rljob: Manifest, cache: Cache) -> Manifest | None:
    """Return the job's Workload of Kueue."""
    key = JobKey(rljob["metadata"]["namespace"], rljob["metadata"]["name"])
    candidates = cache.of_job("Workload", key)
    return next((w for w in candidates if is_owned(w, rljob["metadata"]["uid"])), None)


def observation_of(
    rljob: Manifest,
    cache: Cache,
    ray: RayAnswer,
    report: Report | None,
    log: str,
    *,
    settings: Settings | None = None,
) -> Observation:
    """Return everything that is currently known of the job."""
    requested_job, problems = job_of(rljob, settings)
    workload_manifest = workload_of_job(rljob, cache)
    job = admitted_job(requested_job, workload_manifest) if requested_job else None
    status, key = (
        status_of(rljob),
        JobKey(rljob["metadata"]["namespace"], rljob["metadata"]["name"]),
    )
    uid = rljob["metadata"]["uid"]
    owned = [c for c in cache.of_job("RayCluster", key) if is_owned(c, uid)]
    images = images_of(job.spec, settings) if job and settings else None
    named = status.ray_cluster.name if status.ray_cluster else None
    clusters = {
        manifest["metadata"]["name"]: cluster_of(manifest, images=images) for manifest in owned
    }
    pods = [(_cluster_name(pod), pod_of(pod)) for pod in cache.of_job("Pod", key)]
    living = living_cluster(rljob, cache, status)
    queued = (
        requested_job is not None
        and settings is not None
        and makes_workload(requested_job.spec.scheduling, settings)
    )
    workload = None
    if workload_manifest is not None and requested_job is not None and settings is not None:
        outdated = is_outdated(workload_manifest, requested_job, identity_of(rljob), settings)
        workload = workload_of(
            workload_manifest, requested=requested_workers(requested_job), outdated=outdated
        )
    return Observation(
        identity=identity_of(rljob),
        created=unix(rljob["metadata"]["creationTimestamp"]),
        deleting="deletionTimestamp" in rljob["metadata"],
        spec=job.spec if job else None,
        problems=problems,
        status=status,
        cluster=clusters.get(named) if named else None,
        pods=tuple(pod for cluster, pod in pods if cluster == named),
        ray=ray,
        older=tuple(cluster for name, cluster in clusters.items() if name != named),
        older_pods=tuple(pod for cluster, pod in pods if cluster != named),
        progress=report.progress if report else None,
        checkpoint=report.checkpoint if report else None,
        rollout=report.rollout if report else None,
        data_path=report.dock_data_path if report else None,
        alarms=report.alarms if report else None,
        replicas=report.replicas if report else None,
        log=log,
        # A RayCluster from before the operator made Workloads remains a workload itself until it is gone.
        queued=queued and not (living is not None and is_queued_by_kueue(living)),
        workload=workload,
    )


def living_cluster(rljob: Manifest, cache: Cache, status: RLJobStatus) -> Manifest | None:
    """Return the existing RayCluster that the status names."""
    key = JobKey(rljob["metadata"]["namespace"], rljob["metadata"]["name"])
    named = status.ray_cluster.name if status.ray_cluster else None
    owned = (c for c in cache.of_job("RayCluster", key) if is_owned(c, rljob["metadata"]["uid"]))
    return next((c for c in owned if c["metadata"]["name"] == named), None)


async def ask_ray(status: RLJobStatus, jobs: RayJobs) -> tuple[RayAnswer, str]:
    """Return Ray's view of the current submission, and the end of its log once it has failed."""
    submission = status.ray_cluster.submission_id if status.ray_cluster else None
    if submission is None:
        return RayAnswer(reached=False), ""
    try:
        job = await jobs.job(submission)
        failed = job is not None and job.status in ("FAILED", "STOPPED")
        log = await jobs.log_tail(submission, lines=LOG_LINES) if failed else ""
    except OperatorError:
        return RayAnswer(reached=False), ""
    return RayAnswer(reached=True, job=job), log


def _kueues_words(workload: Manifest) -> str:
    """Return Kueue's explanation why a Workload is not admitted."""
    conditions, status = conditions_of(workload), workload.get("status", {})
    if not workload["spec"].get("active", True):
        return "it is deactivated; set spec.active of the Workload to true"
    if _is(conditions, "QuotaReserved"):
        checks = [c for c in status.get("admissionChecks", []) if c["state"] != "Ready"]
        pending = "; ".join(f"{c['name']}: {c.get('message') or c['state']}" for c in checks)
        return pending or "it holds quota and is being admitted"
    return str(
        conditions.get("QuotaReserved", {}).get("message") or "Kueue has not looked at it yet"
    )


def is_owned(manifest: Manifest, uid: str) -> bool:
    """Return whether this job owns the object, and not an earlier one of the same name."""
    owners = manifest["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == uid for owner in owners)


def _cluster_name(pod: Manifest) -> str:
    return str(pod["metadata"].get("labels", {}).get(CLUSTER_LABEL, ""))


def _workers(cluster: Manifest) -> int:
    groups = cluster.get("spec", {}).get("workerGroupSpecs", [])
    return sum(group.get("replicas", 0) for group in groups if group["groupName"] == "worker")


def _avoided(cluster: Manifest) -> tuple[str, ...]:
    groups = cluster.get("spec", {}).get("workerGroupSpecs", [])
    templates = [group.get("template", {}) for group in groups if group["groupName"] == "worker"]
    return tuple(node for template in templates for node in avoided_nodes(template))


def _ray_container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = status.get("containerStatuses", [])
    ray = [c for c in containers if c["name"].startswith("ray")]
    return next(iter([*ray, *containers]), {})


def _problem(conditions: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "cannot be scheduled")
    waiting = container.get("state", {}).get("waiting", {})
    if waiting.get("reason") in (None, "ContainerCreating", "PodInitializing"):
        return ""
    return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))


def _exit_code(container: Mapping[str, Any]) -> int | None:
    for state in (container.get("state", {}), container.get("lastState", {})):
        if ended := state.get("terminated"):
            return int(ended["exitCode"])
    return None


def _is(conditions: Mapping[str, Any], kind: str) -> bool:
    return bool(conditions.get(kind, {}).get("status") == "True")
