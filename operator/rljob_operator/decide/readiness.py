"""Determine which pods and devices a job has, and which it waits for. Used by `attempt`."""

from collections.abc import Iterator

from rljob_api.topology.devices import pods, total_devices
from rljob_api.topology.worker_pods import device_resource_name, is_ascend
from rljob_operator.decide.draft import Draft

SHOWN_PROBLEMS = 3


def missing_pods(draft: Draft) -> str:
    """Describe what the job waits for before it can start; "" if all pods are ready."""
    observed, spec = draft.observed, draft.observed.spec
    assert spec is not None
    needed = pods(spec)
    counts = {"head": needed.head, "worker": needed.worker, "warehouse": needed.warehouse}
    short = [
        f"{ready} of {count} {role} pods are ready"
        for role, count in counts.items()
        if (ready := sum(pod.role == role and pod.ready for pod in observed.pods)) < count
    ]
    if observed.cluster is None:
        return observed.refused or "its RayCluster is being made"
    return "; ".join([*short, *_reasons(draft)]) if short else ""


def set_pods_ready(draft: Draft) -> None:
    """Set ClusterReady once the pods that the job needs are ready, with the number of spares that wait."""
    spare = draft.status.spare_nodes
    draft.set("ClusterReady", "True", "PodsReady", f"{spare} spare nodes wait" if spare else "")


def set_devices(draft: Draft) -> None:
    """Set status.devices, those of ready pods and those requested, and the same for spare nodes."""
    spec = draft.observed.spec
    assert spec is not None
    ready = sum(pod.ready for pod in draft.observed.of_role("worker"))
    total = total_devices(spec.placement, spec.accelerator)
    draft.update(devices=f"{min(ready * spec.accelerator.devices_per_node, total)}/{total}")
    counts = pods(spec)
    spare = max(0, min(ready - counts.worker, counts.spare))
    draft.update(spare_nodes=f"{spare}/{counts.spare}" if counts.spare else None)


def _reasons(draft: Draft) -> Iterator[str]:
    """Yield why pods are missing: first those without a node, which cause the others."""
    observed, spec = draft.observed, draft.observed.spec
    assert spec is not None and observed.cluster is not None
    if observed.cluster.suspended:
        yield "its RayCluster is suspended: it waits for Kueue to admit it"
    unscheduled = [pod for pod in observed.of_role("worker") if not pod.node]
    if unscheduled:
        text = f"{len(unscheduled)} worker pods have no node"
        if is_ascend(accelerator := spec.accelerator):
            devices = len(unscheduled) * accelerator.devices_per_node
            text += f"; they need {devices} {device_resource_name(accelerator)}"
        yield text
    if observed.cluster.refusal:
        yield observed.cluster.refusal
    failing = [pod for pod in observed.pods if pod.problem]
    yield from (f"pod {pod.name}: {pod.problem}" for pod in failing[:SHOWN_PROBLEMS])
    silent = [pod for pod in observed.pods if not pod.ready and not pod.problem]
    yield from (f"pod {pod.name} is not ready yet" for pod in silent[:SHOWN_PROBLEMS])
