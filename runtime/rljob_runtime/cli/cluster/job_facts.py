"""Read manifests of a job and its pods, in the terms of the commands. Pure."""

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
    """Return the conditions of a job or a pod, by type."""
    return {c["type"]: c for c in manifest.get("status", {}).get("conditions") or []}


def ending(job: Manifest) -> str | None:
    """Return Succeeded or Failed; None while the job has not ended."""
    by_type = conditions(job)
    ends = ("Succeeded", "Failed")
    return next((end for end in ends if by_type.get(end, {}).get("status") == "True"), None)


def phase(job: Manifest) -> str:
    """Return the job's phase, Pending without one."""
    return str(job.get("status", {}).get("phase") or "Pending")


def run_folder(job: Manifest) -> str:
    """Return the run's folder in the job's pods."""
    metadata = job["metadata"]
    return pod_names.run_directory(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        path=_storage(job).get("path"),
    )


def run_location(job: Manifest) -> str:
    """Describe in a sentence where the run's folder is once the pods are gone."""
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
    """Return the head of the current cluster, else the newest head; None without one."""
    heads = [pod for pod in pods if role(pod) == "head"]
    cluster = job.get("status", {}).get("rayCluster", {}).get("name")

    def preference(pod: Manifest) -> tuple[bool, bool, str]:
        metadata = pod["metadata"]
        is_current = metadata["labels"].get(CLUSTER_LABEL) == cluster
        return is_current, "deletionTimestamp" not in metadata, metadata["creationTimestamp"]

    return max(heads, key=preference, default=None)


def role(pod: Manifest) -> str:
    """Return the role of a pod: head, worker or warehouse."""
    return str(pod["metadata"].get("labels", {}).get(ROLE_LABEL, ""))


def is_ready(pod: Manifest) -> bool:
    """Return whether the pod's condition Ready is true."""
    return bool(conditions(pod).get("Ready", {}).get("status") == "True")


def has_started(pod: Manifest) -> bool:
    """Return whether the Ray container has started, so that it has a log."""
    states = [c.get("state", {}) for c in _ray_containers(pod)]
    return any("running" in state or "terminated" in state for state in states)


def state(pod: Manifest) -> str:
    """Describe the state of the pod, or why it does not run."""
    by_type, status = conditions(pod), pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    if by_type.get("PodScheduled", {}).get("status") == "False":
        return f"Pending: {by_type['PodScheduled'].get('message') or 'not scheduled'}"
    for container in [*_initial_containers(pod), *_ray_containers(pod)]:
        container_state = container.get("state", {})
        if "waiting" in container_state:
            return _join_parts(
                container_state["waiting"].get("reason"), container_state["waiting"].get("message")
            )
        if "terminated" in container_state:
            termination = container_state["terminated"]
            return f"{termination.get('reason') or 'Ended'}, exit code {termination['exitCode']}"
    text = str(status.get("reason") or status.get("phase") or "Pending")
    return text if is_ready(pod) or text != "Running" else "Running, not ready"


def restarts(pod: Manifest) -> int:
    """Return how often the Ray container was restarted in place."""
    return sum(int(c.get("restartCount", 0)) for c in _ray_containers(pod))


def seconds_since(time: str | None, unix_s: float) -> float:
    """Return the seconds from a Kubernetes timestamp until `unix_s`; nan without a timestamp."""
    return unix_s - datetime.fromisoformat(time).timestamp() if time else math.nan


def age(seconds: float) -> str:
    """Format an age as kubectl does: `41s`, `5m`, `3h`, `12d`; `–` for nan."""
    if math.isnan(seconds):
        return "–"
    for unit, size in UNITS:
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def _initial_containers(pod: Manifest) -> list[Manifest]:
    """Return the init containers on which the Ray container waits; KubeRay's has the same image."""
    containers = pod.get("status", {}).get("initContainerStatuses") or []
    waiting = [c for c in containers if "waiting" in c.get("state", {})]
    return [c for c in waiting if c["state"]["waiting"].get("reason") != "PodInitializing"]


def _ray_containers(pod: Manifest) -> list[Manifest]:
    containers = pod.get("status", {}).get("containerStatuses") or []
    return [c for c in containers if c["name"].startswith("ray-")] or containers[:1]


def _storage(job: Manifest) -> dict[str, Any]:
    storage: dict[str, Any] = job["spec"].get("checkpoint", {}).get("storage") or {}
    return storage


def _join_parts(*texts: str | None) -> str:
    return ": ".join(text for text in texts if text)
