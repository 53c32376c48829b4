"""The world as `decide` wants to see it: manifests from the cache, and what Ray says, as plain data.

Called by `reconcile`. Everything but `ask_ray` is pure.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rljob_api.check.layout_rules import copies_on_one_node
from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.status import RLJobStatus
from rljob_api.topology.pod_names import CLUSTER_LABEL, ROLE_LABEL
from rljob_operator.build.identity import Identity
from rljob_operator.decide.draft import unix
from rljob_operator.decide.model import Cluster, Observed, Pod, RayAnswer
from rljob_operator.driver.progress import Report
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.errors import OperatorError
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.settings import Settings
from rljob_operator.watch.cache import Cache, JobKey

LOG_LINES = 20
JOB_FIELDS = ("name", "namespace", "labels", "annotations")


def identity_of(rljob: Manifest) -> Identity:
    """Who the job is."""
    metadata = rljob["metadata"]
    return Identity(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
    )


def job_of(
    rljob: Manifest, settings: Settings | None = None
) -> tuple[RLJob | None, tuple[Problem, ...]]:
    """The job as the contract reads it, or what is wrong with it. settings: it must be possible with them."""
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
    """What the job asks for and this installation, or any cluster, does not allow."""
    problems = list(copies_on_one_node(job.spec))
    if job.spec.dock.shared_memory == "required" and settings.shared_memory == "none":
        message = (
            "is required, but this operator gives the pods of a node no folder in common; use auto, or "
            "install the chart with sharedMemory.hostPath: true"
        )
        problems.append(Problem("spec.dock.sharedMemory", message))
    return tuple(problems)


def status_of(rljob: Manifest) -> RLJobStatus:
    """The stored status; an unreadable one (of a version that is gone) counts as empty."""
    try:
        return RLJobStatus.model_validate(rljob.get("status") or {}, by_alias=True, by_name=False)
    except ValidationError:
        return RLJobStatus()


def pod_of(manifest: Manifest) -> Pod:
    """What decisions need of a pod. Its first container is Ray's."""
    metadata, status = manifest["metadata"], manifest.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    container = _ray_container(status)
    deleted = metadata.get("deletionTimestamp")
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        role=metadata.get("labels", {}).get(ROLE_LABEL, "worker"),
        ready=_is(conditions, "Ready") and deleted is None,
        incarnation=f"{metadata['uid']}/{container.get('restartCount', 0)}",
        node=manifest.get("spec", {}).get("nodeName", ""),
        deleting_since=unix(deleted) if deleted else None,
        problem=_problem(conditions, container),
        exit_code=_exit_code(container),
        disrupted=_is(conditions, "DisruptionTarget"),
    )


def cluster_of(manifest: Manifest) -> Cluster:
    """What decisions need of a RayCluster. Its `status.state` is not read: it stays ready for ever."""
    conditions = {c["type"]: c for c in manifest.get("status", {}).get("conditions", [])}
    refused = conditions.get("ReplicaFailure", {})
    return Cluster(
        name=manifest["metadata"]["name"],
        uid=manifest["metadata"]["uid"],
        deleting="deletionTimestamp" in manifest["metadata"],
        workers=_workers(manifest),
        refusal=refused.get("message", "") if refused.get("status") == "True" else "",
    )


def observed(
    rljob: Manifest,
    cache: Cache,
    ray: RayAnswer,
    report: Report | None,
    log: str,
    *,
    settings: Settings | None = None,
) -> Observed:
    """All that is known of the job now."""
    job, problems = job_of(rljob, settings)
    status, key = (
        status_of(rljob),
        JobKey(rljob["metadata"]["namespace"], rljob["metadata"]["name"]),
    )
    uid = rljob["metadata"]["uid"]
    own = [c for c in cache.of_job("RayCluster", key) if _owned(c, uid)]
    named = status.ray_cluster.name if status.ray_cluster else None
    clusters = {manifest["metadata"]["name"]: cluster_of(manifest) for manifest in own}
    pods = [(_cluster_name(pod), pod_of(pod)) for pod in cache.of_job("Pod", key)]
    return Observed(
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
        log=log,
    )


async def ask_ray(status: RLJobStatus, jobs: RayJobs) -> tuple[RayAnswer, str]:
    """Ray's view of the present submission, and the end of its log once it has failed."""
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


def _owned(manifest: Manifest, uid: str) -> bool:
    """Whether the job itself owns it, and not an earlier one of the same name."""
    owners = manifest["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == uid for owner in owners)


def _cluster_name(pod: Manifest) -> str:
    return str(pod["metadata"].get("labels", {}).get(CLUSTER_LABEL, ""))


def _workers(cluster: Manifest) -> int:
    groups = cluster.get("spec", {}).get("workerGroupSpecs", [])
    return sum(group.get("replicas", 0) for group in groups if group["groupName"] == "worker")


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
