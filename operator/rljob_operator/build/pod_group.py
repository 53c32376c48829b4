"""Volcano's PodGroup of a RayCluster's pods: all that the job needs to start, without spare ones."""

from collections.abc import Iterable
from decimal import Decimal

from rljob_api.spec.pods import parse_amount
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import pods
from rljob_operator.build.accelerators import placing_annotations
from rljob_operator.build.gang import GROUP_ANNOTATION
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, metadata

VOLCANO = "scheduling.volcano.sh/v1beta1"


def pod_group(job: RLJob, identity: JobIdentity, cluster: Manifest, *, released: bool) -> Manifest:
    """Return the PodGroup, named after the RayCluster. released: only for the head."""
    counts, scheduling = pods(job.spec), job.spec.scheduling
    tasks = {"head": counts.head}
    if not released:
        tasks |= {"worker": counts.worker, "warehouse": counts.warehouse}
    spec = cluster["spec"]
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    templates = {"head": spec["headGroupSpec"]} | groups
    needed = [
        (_amounts(templates[role]["template"]["spec"]), number) for role, number in tasks.items()
    ]
    names = sorted({name for amounts, _ in needed for name in amounts})
    body: Manifest = {
        "minMember": sum(tasks.values()),
        "minTaskMember": tasks,
        "minResources": {
            name: _total((amounts[name], number) for amounts, number in needed if name in amounts)
            for name in names
        },
    }
    if scheduling.queue is not None:
        body["queue"] = scheduling.queue
    if scheduling.priority_class is not None:
        body["priorityClassName"] = scheduling.priority_class
    meta = metadata(identity, cluster["metadata"]["name"], component="pod-group")
    if annotations := placing_annotations(job.spec):
        meta["annotations"] = annotations
    return {"apiVersion": VOLCANO, "kind": "PodGroup", "metadata": meta, "spec": body}


def is_grouped(cluster: Manifest) -> bool:
    """Return whether the RayCluster's pods belong to the PodGroup of its name."""
    head = cluster["spec"]["headGroupSpec"]["template"].get("metadata", {})
    return bool(head.get("annotations", {}).get(GROUP_ANNOTATION) == cluster["metadata"]["name"])


def _amounts(pod: Manifest) -> dict[str, str]:
    """Return what a pod requests: the requests of its only container, which default to the limits."""
    resources = pod["containers"][0].get("resources", {})
    requests = {**resources.get("limits", {}), **resources.get("requests", {})}
    return {name: str(amount) for name, amount in requests.items()}


def _total(amounts: Iterable[tuple[str, int]]) -> str:
    """Return the sum of amounts, each multiplied by its number."""
    total = sum((parse_amount(text) * number for text, number in amounts), Decimal(0))
    return f"{total.normalize():f}"
