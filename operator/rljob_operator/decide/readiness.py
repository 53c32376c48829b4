"""Which pods and devices a job has, and which it waits for. Used by `attempt`."""

from collections.abc import Iterator

from rljob_api.topology.devices import pods, total_devices
from rljob_api.topology.worker_pods import device_resource_name, is_ascend
from rljob_operator.decide.draft import Draft

SHOWN_PROBLEMS = 3


def missing_pods(draft: Draft) -> str:
    """What the job waits for before it can start; "" when all pods are ready."""
    seen, spec = draft.seen, draft.seen.spec
    assert spec is not None
    wanted = pods(spec)
    counts = {"head": wanted.head, "worker": wanted.worker, "warehouse": wanted.warehouse}
    short = [
        f"{ready} of {count} {role} pods are ready"
        for role, count in counts.items()
        if (ready := sum(pod.role == role and pod.ready for pod in seen.pods)) < count
    ]
    if seen.cluster is None:
        return seen.refused or "its RayCluster is being made"
    return "; ".join([*short, *_reasons(draft)]) if short else ""


def tell_pods(draft: Draft) -> None:
    """The pods that the job needs are there: ClusterReady, with what its spares lack."""
    spare = draft.status.spare_nodes
    draft.set("ClusterReady", "True", "PodsReady", f"{spare} spare nodes wait" if spare else "")


def tell_devices(draft: Draft) -> None:
    """Set status.devices, those of ready pods and those wanted, and the same of spare nodes."""
    spec = draft.seen.spec
    assert spec is not None
    ready = sum(pod.ready for pod in draft.seen.of_role("worker"))
    total = total_devices(spec.placement, spec.accelerator)
    draft.update(devices=f"{min(ready * spec.accelerator.devices_per_node, total)}/{total}")
    counts = pods(spec)
    spare = max(0, min(ready - counts.worker, counts.spare))
    draft.update(spare_nodes=f"{spare}/{counts.spare}" if counts.spare else None)


def _reasons(draft: Draft) -> Iterator[str]:
    """Why pods are missing: first those without a node, from which the rest follows."""
    seen, spec = draft.seen, draft.seen.spec
    assert spec is not None and seen.cluster is not None
    if seen.cluster.suspended:
        yield "its RayCluster is suspended: it waits for Kueue to admit it"
    homeless = [pod for pod in seen.of_role("worker") if not pod.node]
    if homeless:
        told = f"{len(homeless)} worker pods have no node"
        if is_ascend(accelerator := spec.accelerator):
            devices = len(homeless) * accelerator.devices_per_node
            told += f"; they need {devices} {device_resource_name(accelerator)}"
        yield told
    if seen.cluster.refusal:
        yield seen.cluster.refusal
    troubled = [pod for pod in seen.pods if pod.problem]
    yield from (f"pod {pod.name}: {pod.problem}" for pod in troubled[:SHOWN_PROBLEMS])
    silent = [pod for pod in seen.pods if not pod.ready and not pod.problem]
    yield from (f"pod {pod.name} is not ready yet" for pod in silent[:SHOWN_PROBLEMS])
