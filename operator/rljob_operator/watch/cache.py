"""The last observed RLJobs, RayClusters and pods, by kind and name or by job.

Filled by `informers` and `resync`; read by `observe`. Of pods it stores only what decisions need.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rljob_api.check.size import size_problem
from rljob_operator.kube.kube_answers import Manifest

JOB_LABEL = "rljob.io/job"

Kind = Literal["RLJob", "RayCluster", "Pod", "Workload"]
KINDS: tuple[Kind, ...] = ("RLJob", "RayCluster", "Pod")
"""Kinds that every operator watches; `Workload` is Kueue's."""

POD_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "ownerReferences",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
POD_CHIPS = "huawei.com/AscendReal"
"""Annotation with the comma-separated chips of a pod, set by Ascend's device plugin."""
POD_SPEC = ("nodeName", "schedulingGates")
POD_STATUS = ("phase", "reason", "message", "podIP", "hostIP", "startTime", "conditions")
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
TOO_LARGE = "tooLarge"
"""Key of the problem of an RLJob whose spec is not stored because it is too large."""
CONTAINER = ("name", "ready", "restartCount", "containerID", "imageID", "state", "lastState")


class JobKey(NamedTuple):
    """An RLJob, as a key of the queue."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ObjectKey(NamedTuple):
    """An object, as a key of the cache."""

    kind: Kind
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as last observed, the job that it belongs to, and when it was observed (monotonic
    seconds)."""

    object: Manifest
    job: JobKey | None
    observed_at: float


class Cache:
    """The last observed objects of these kinds. Returned manifests are shared: read them, never write
    them."""

    def __init__(self, kinds: tuple[Kind, ...] = KINDS) -> None:
        self.kinds = kinds
        self._entries: dict[ObjectKey, Entry] = {}
        self._of_job: dict[JobKey, set[ObjectKey]] = defaultdict(set)
        self._removed: dict[str, float] = {}  # uid → when; only since the last list
        self._listed: set[Kind] = set()
        self._counts: Counter[Kind] = Counter()

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None if none was observed."""
        entry = self._entries.get(ObjectKey(kind, namespace, name))
        return None if entry is None else entry.object

    def of_job(self, kind: Kind, job: JobKey) -> list[Manifest]:
        """Return the job's objects of a kind, by name."""
        keys = sorted(key for key in self._of_job.get(job, ()) if key.kind == kind)
        return [self._entries[key].object for key in keys]

    def jobs(self) -> list[JobKey]:
        """Return every RLJob that exists."""
        return [JobKey(key.namespace, key.name) for key in self._entries if key.kind == "RLJob"]

    def jobs_on(self, nodes: Collection[str]) -> set[JobKey]:
        """Return the jobs with a pod on one of these nodes."""
        return {
            entry.job
            for key, entry in self._entries.items()
            if key.kind == "Pod" and entry.job and entry.object["spec"].get("nodeName") in nodes
        }

    def count(self, kind: Kind) -> int:
        """Return the number of objects of a kind."""
        return self._counts[kind]

    def filled(self) -> bool:
        """Return whether every kind was listed at least once."""
        return self._listed.issuperset(self.kinds)

    def put(self, kind: Kind, manifest: Manifest, *, observed_at: float) -> set[JobKey]:
        """Store the object, and return the jobs for which this is a change; none if nothing changed."""
        key = _key(kind, manifest)
        before = self._entries.get(key)
        if manifest["metadata"].get("uid") in self._removed:
            return set()
        if before is not None and not _is_newer(manifest, before.object):
            return set()
        entry = Entry(reduced(kind, manifest), _job_of(kind, manifest), observed_at)
        self._counts[kind] += before is None
        self._entries[key] = entry
        if before is not None and before.job == entry.job and _same(before.object, entry.object):
            return set()
        jobs: set[JobKey] = set()
        if before is not None and before.job is not None:
            self._forget_job(key, before)
            jobs.add(before.job)
        if entry.job is not None:
            self._of_job[entry.job].add(key)
            jobs.add(entry.job)
        return jobs

    def remove(self, kind: Kind, manifest: Manifest, *, observed_at: float) -> set[JobKey]:
        """Remove a deleted object, unless another of its name was created in the meantime."""
        key = _key(kind, manifest)
        self._removed[manifest["metadata"].get("uid", "")] = observed_at
        entry = self._entries.get(key)
        if entry is None or entry.object["metadata"].get("uid") != manifest["metadata"].get("uid"):
            return set()
        del self._entries[key]
        self._counts[kind] -= 1
        self._forget_job(key, entry)
        return set() if entry.job is None else {entry.job}

    def replace(
        self,
        kind: Kind,
        manifests: Iterable[Manifest],
        *,
        began: float,
        namespaces: set[str] | None,
    ) -> set[JobKey]:
        """Store a full list that was requested at `began`, and return the jobs that it changes.

        A watch does not report what was deleted while it was broken; this does. What an event reported since
        `began` stays, since the list may be older. namespaces: those listed, None for all.
        """
        jobs: set[JobKey] = set()
        listed: set[ObjectKey] = set()
        for manifest in manifests:
            key = _key(kind, manifest)
            listed.add(key)
            removed = self._removed.get(manifest["metadata"].get("uid", ""), -1.0)
            if removed <= began and not self._observed_since(began, key):
                jobs |= self.put(kind, manifest, observed_at=began)
        for key in [key for key in self._entries if key.kind == kind and key not in listed]:
            ours = namespaces is None or key.namespace in namespaces
            if ours and not self._observed_since(began, key):
                jobs |= self.remove(kind, self._entries[key].object, observed_at=began)
        self._removed = {uid: when for uid, when in self._removed.items() if when > began}
        self._listed.add(kind)
        return jobs

    def _observed_since(self, began: float, key: ObjectKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.observed_at > began

    def _forget_job(self, key: ObjectKey, entry: Entry) -> None:
        if entry.job is None:
            return
        keys = self._of_job[entry.job]
        keys.discard(key)
        if not keys:
            del self._of_job[entry.job]


def _key(kind: Kind, manifest: Manifest) -> ObjectKey:
    metadata = manifest["metadata"]
    return ObjectKey(kind, metadata["namespace"], metadata["name"])


def _job_of(kind: Kind, manifest: Manifest) -> JobKey | None:
    metadata = manifest["metadata"]
    name = metadata["name"] if kind == "RLJob" else metadata.get("labels", {}).get(JOB_LABEL)
    return None if name is None else JobKey(metadata["namespace"], name)


def _is_newer(manifest: Manifest, before: Manifest) -> bool:
    """Return whether it is another object, or a later version: the answer to a pass's own write may arrive
    after a watch event of the next one. Versions are numbers in every API server that stores in etcd."""
    uid, version = _version(manifest)
    old_uid, old_version = _version(before)
    if uid != old_uid:
        return True
    if version.isdecimal() and old_version.isdecimal():
        return int(version) > int(old_version)
    return version != old_version


def _version(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest["metadata"]
    return metadata.get("uid", ""), metadata.get("resourceVersion", "")


def _same(one: Manifest, other: Manifest) -> bool:
    """Return whether two objects differ only in their resourceVersion."""
    return {**one, "metadata": {**one["metadata"], "resourceVersion": None}} == {
        **other,
        "metadata": {**other["metadata"], "resourceVersion": None},
    }


def reduced(kind: Kind, manifest: Manifest) -> Manifest:
    """Return the fields of the object that are worth their memory. Reducing a reduced object changes
    nothing."""
    if kind == "Pod":
        return _pod_facts(manifest)
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    if LAST_APPLIED in metadata.get("annotations", {}):  # a second copy of the full object
        annotations = metadata["annotations"].items()
        metadata["annotations"] = {key: value for key, value in annotations if key != LAST_APPLIED}
    if kind == "RLJob" and (problem := size_problem(manifest)) is not None:
        return {**manifest, "metadata": metadata, "spec": {}, TOO_LARGE: problem}
    return {**manifest, "metadata": metadata}


def _pod_facts(pod: Manifest) -> Manifest:
    status = pod.get("status", {})
    containers = {
        group: [_picked(container, CONTAINER) for container in status[group]]
        for group in ("containerStatuses", "initContainerStatuses")
        if group in status
    }
    annotations = _picked(pod["metadata"].get("annotations", {}), [POD_CHIPS])
    return {
        "metadata": _picked(pod["metadata"], POD_METADATA) | {"annotations": annotations},
        "spec": _picked(pod.get("spec", {}), POD_SPEC),
        "status": _picked(status, POD_STATUS) | containers,
    }


def _picked(source: Manifest, keys: Iterable[str]) -> Manifest:
    return {key: source[key] for key in keys if key in source}
