"""Change rollout devices while a job trains: pods are added before their devices, and removed after them.

Used by `attempt`. The driver gets the desired number; a pod is released only once the driver reports that no
device of the job is in it.
"""

from rljob_api.topology.devices import pods as pods_of
from rljob_api.topology.elastic import is_elastic
from rljob_operator.build.names import pod_selector
from rljob_operator.decide.draft import Draft
from rljob_operator.decide.model import ScaleRollout


def keep_scale(draft: Draft) -> None:
    """Bring pods and driver to spec.placement.rolloutDevices."""
    observed, spec = draft.observed, draft.observed.spec
    assert spec is not None and draft.status.ray_cluster is not None
    desired, report = spec.placement.rollout_devices, observed.rollout
    if not is_elastic(spec) or desired is None or observed.cluster is None:
        return
    workers = pod_selector(observed.identity, "worker").items()
    draft.update(selector=",".join(f"{key}={value}" for key, value in workers))
    counts, cluster = pods_of(spec), draft.status.ray_cluster.name
    needed = counts.worker + counts.spare
    if needed > observed.cluster.workers:
        draft.make(cluster, workers=needed)
    if report is None:
        return
    draft.update(rollout_replicas=report.ready)
    if report.wanted != desired:
        draft.do(ScaleRollout(rollout=desired))
    if report.ready == desired == report.wanted and not report.draining:
        draft.set("Resizing", "False", "Resized", f"{desired} devices generate", emit=False)
        _give_back(draft, cluster, needed)
    else:
        message = report.message or f"{report.ready} devices generate, {desired} shall"
        draft.set("Resizing", "True", "DevicesDiffer", message)


def _give_back(draft: Draft, cluster: str, needed: int) -> None:
    """Name the pods without a device of the job to KubeRay, which would otherwise remove any."""
    observed, report = draft.observed, draft.observed.rollout
    assert observed.cluster is not None and report is not None
    surplus = observed.cluster.workers - needed
    free = [pod for pod in observed.of_role("worker") if pod.name not in report.hosts]
    free.sort(key=lambda pod: (pod.ready, pod.name))  # ready ones stay as spares
    if surplus > 0 and len(free) >= surplus:
        leaving = tuple(pod.name for pod in free[:surplus])
        draft.make(cluster, workers=needed, leaving=leaving)
