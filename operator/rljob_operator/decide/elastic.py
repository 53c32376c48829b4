"""Rollout devices that come and go while a job trains: pods come before their devices, and go after them.

Used by `attempt`. The driver is told the wanted number; a pod is given back only once the driver says that no
device of the job is in it.
"""

from rljob_api.topology.devices import pods as pods_of
from rljob_api.topology.elastic import is_elastic
from rljob_operator.build.names import pod_selector
from rljob_operator.decide.draft import Draft
from rljob_operator.decide.model import ScaleRollout


def keep_scale(draft: Draft) -> None:
    """Bring pods and driver to spec.placement.rolloutDevices."""
    seen, spec = draft.seen, draft.seen.spec
    assert spec is not None and draft.status.ray_cluster is not None
    wanted, report = spec.placement.rollout_devices, seen.rollout
    if not is_elastic(spec) or wanted is None or seen.cluster is None:
        return
    workers = pod_selector(seen.identity, "worker").items()
    draft.update(selector=",".join(f"{key}={value}" for key, value in workers))
    counts, cluster = pods_of(spec), draft.status.ray_cluster.name
    needed = counts.worker + counts.spare
    if needed > seen.cluster.workers:
        draft.make(cluster, workers=needed)
    if report is None:
        return
    draft.update(rollout_replicas=report.ready)
    if report.wanted != wanted:
        draft.do(ScaleRollout(rollout=wanted))
    if report.ready == wanted == report.wanted and not report.draining:
        draft.set("Resizing", "False", "Resized", f"{wanted} devices generate", tell=False)
        _give_back(draft, cluster, needed)
    else:
        message = report.message or f"{report.ready} devices generate, {wanted} shall"
        draft.set("Resizing", "True", "DevicesDiffer", message)


def _give_back(draft: Draft, cluster: str, needed: int) -> None:
    """Name the pods without a device of the job to KubeRay, which would else take any."""
    seen, report = draft.seen, draft.seen.rollout
    assert seen.cluster is not None and report is not None
    surplus = seen.cluster.workers - needed
    free = [pod for pod in seen.of_role("worker") if pod.name not in report.hosts]
    free.sort(key=lambda pod: (pod.ready, pod.name))  # as spares, those that are there stay
    if surplus > 0 and len(free) >= surplus:
        leaving = tuple(pod.name for pod in free[:surplus])
        draft.make(cluster, workers=needed, leaving=leaving)
