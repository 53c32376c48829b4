"""What manifests of a job and its pods say, in the words that the commands use. Pure."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rljob_api.topology import pod_names
from rljob_api.topology.pod_names import CLUSTER_LABEL, ROLE_LABEL, RUNS_DIRECTORY

Manifest = dict[str, Any]
ROLES = ("head", "worker", "warehouse")
UNITS = (("d", 86400), ("h", 3600), ("m", 60))


def conditions(manifest: Mapping[str, Any]) -> dict[str, Manifest]:
    """Conditions of a job or a pod, by type."""
    return {c["type"]: c for c in manifest.get("status", {}).get("conditions") or []}


def ending(job: Manifest) -> str | None:
    """Succeeded or Failed; None while the job goes on."""
    found = conditions(job)
    ends = ("Succeeded", "Failed")
    return next((end for end in ends if found.get(end, {}).get("status") == "True"), None)


def phase(job: Manifest) -> str:
    """The job's one word for people."""
    return str(job.get("status", {}).get("phase") or "Pending")


def run_folder(job: Manifest) -> str:
    """The run's folder in the job's pods."""
    metadata = job["metadata"]
    return pod_names.run_directory(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        path=_storage(job).get("path"),
    )


def where_it_lies(job: Manifest) -> str:
    """What holds the run's folder once the pods are gone, as a sentence."""
    storage = _storage(job)
    claim = storage.get("persistentVolumeClaim", {}).get("claimName")
    if "remote" in storage:
        path = run_folder(job).removeprefix(f"{RUNS_DIRECTORY}/")
        return f"the run's checkpoints, events and report are at {storage['remote']['uri']}/{path}"
    if claim is None:
        return "the run's folder went with its pods (spec.checkpoint.storage keeps it)"
    folder = run_folder(job).removeprefix(f"{RUNS_DIRECTORY}/")
    return f"the run's folder is {folder} on PersistentVolumeClaim {claim}"


def head_pod(job: Manifest, pods: Sequence[Manifest]) -> Manifest | None:
    """The head of the present cluster, else the newest head that there is."""
    heads = [pod for pod in pods if role(pod) == "head"]
    cluster = job.get("status", {}).get("rayCluster", {}).get("name")

    def preference(pod: Manifest) -> tuple[bool, bool, str]:
        metadata = pod["metadata"]
        present = metadata["labels"].get(CLUSTER_LABEL) == cluster
        return present, "deletionTimestamp" not in metadata, metadata["creationTimestamp"]

    return max(heads, key=preference, default=None)


def role(pod: Manifest) -> str:
    """head, worker or warehouse."""
    return str(pod["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


def is_ready(pod: Manifest) -> bool:
    """Whether Kubernetes counts on the pod."""
    return bool(conditions(pod).get("Ready", {}).get("status") == "True")


def has_started(pod: Manifest) -> bool:
    """Whether the Ray container has run, so that there is a log."""
    states = [c.get("state", {}) for c in _ray_containers(pod)]
    return any("running" in state or "terminated" in state for state in states)


def state(pod: Manifest) -> str:
    """What the pod does, or what keeps it from doing it."""
    found, status = conditions(pod), pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    if found.get("PodScheduled", {}).get("status") == "False":
        return f"Pending: {found['PodScheduled'].get('message') or 'not scheduled'}"
    for container in [*_initial_containers(pod), *_ray_containers(pod)]:
        own = container.get("state", {})
        if "waiting" in own:
            return _joined(own["waiting"].get("reason"), own["waiting"].get("message"))
        if "terminated" in own:
            ended = own["terminated"]
            return f"{ended.get('reason') or 'Ended'}, exit code {ended['exitCode']}"
    text = str(status.get("reason") or status.get("phase") or "Pending")
    return text if is_ready(pod) or text != "Running" else "Running, not ready"


def restarts(pod: Manifest) -> int:
    """How often the Ray container was started again in place."""
    return sum(int(c.get("restartCount", 0)) for c in _ray_containers(pod))


def seconds_since(time: str | None, now: float) -> float:
    """Seconds from a time as Kubernetes writes it until `now` (unix); nan without one."""
    return now - datetime.fromisoformat(time).timestamp() if time else math.nan


def age(seconds: float) -> str:
    """`41s`, `5m`, `3h`, `12d`, as kubectl; `–` for what is unknown."""
    if math.isnan(seconds):
        return "–"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _initial_containers(pod: Manifest) -> list[Manifest]:
    """Those that come before the Ray container and keep it waiting: KubeRay's has the same image."""
    containers = pod.get("status", {}).get("initContainerStatuses") or []
    waiting = [c for c in containers if "waiting" in c.get("state", {})]
    return [c for c in waiting if c["state"]["waiting"].get("reason") != "PodInitializing"]


def _ray_containers(pod: Manifest) -> list[Manifest]:
    containers = pod.get("status", {}).get("containerStatuses") or []
    return [c for c in containers if c["name"].startswith("ray-")] or containers[:1]


def _storage(job: Manifest) -> dict[str, Any]:
    storage: dict[str, Any] = job["spec"].get("checkpoint", {}).get("storage") or {}
    return storage


def _joined(*parts: str | None) -> str:
    return ": ".join(part for part in parts if part)
