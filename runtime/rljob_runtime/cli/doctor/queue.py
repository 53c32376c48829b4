"""Check that Kueue can admit a job: its queue, the covered resources, the quota and the priority. Pure."""

from collections.abc import Iterator

from rljob_api.spec.section import parse_quantity
from rljob_runtime.cli.doctor.cluster_facts import (
    Facts,
    KueueFacts,
    Manifest,
    UnreadableFact,
    name_of,
)
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, require, skipped, warn
from rljob_runtime.cli.doctor.need import Need

POD_RESOURCES = ("cpu", "memory")
"""Resources that each of a job's pods requests."""


def queue(facts: Facts, need: Need) -> Iterator[Finding]:
    """Yield a line for the queue, one for its quota of devices, and one for a missing priority class."""
    kueue, scheduling = facts.queue, need.job.spec.scheduling
    if kueue is None:
        return
    if not require(kueue.served):
        text = "kueue.x-k8s.io/v1beta2 is not served, which spec.scheduling asks for"
        yield fail(text, "install Kueue 0.15 or newer, or leave spec.scheduling.scheduler out")
        return
    if kueue.priority_class is None:
        text = f"there is no WorkloadPriorityClass {scheduling.priority_class}"
        yield fail(text, "make it, or name another in spec.scheduling.priorityClass")
    elif isinstance(kueue.priority_class, UnreadableFact):
        yield skipped(kueue.priority_class.why)
    yield from _queue_findings(kueue, facts.namespace, need)


def _queue_findings(kueue: KueueFacts, namespace: str, need: Need) -> Iterator[Finding]:
    name, local_queues = need.job.spec.scheduling.queue, require(kueue.local_queues)
    local_queue = next(
        (candidate for candidate in local_queues if name_of(candidate) == name), None
    )
    if local_queue is None:
        names = ", ".join(sorted(map(name_of, local_queues))) or "none"
        text = f"namespace {namespace} has no LocalQueue {name}; there are: {names}"
        yield fail(text, "make the LocalQueue, or name another in spec.scheduling.queue")
        return
    cluster_name = str(local_queue["spec"]["clusterQueue"])
    queues = f"LocalQueue {name} of ClusterQueue {cluster_name}"
    cluster_queue = require(kueue.cluster_queue)
    if cluster_queue is None:
        yield fail(f"{queues}, which there is not", f"make ClusterQueue {cluster_name}")
        return
    if reason := _stop_reason(local_queue) or _stop_reason(cluster_queue):
        yield warn(f"{queues} admits nothing: {reason}", "the job waits until that has changed")
    else:
        yield ok(queues)
    yield from _quota_findings(cluster_queue, need)


def _stop_reason(queue: Manifest) -> str:
    """Return why the queue admits nothing, "" where it may admit jobs."""
    policy = queue["spec"].get("stopPolicy", "None")
    if policy != "None":
        return f"the stopPolicy of {name_of(queue)} is {policy}"
    conditions = queue.get("status", {}).get("conditions", [])
    inactive = [c for c in conditions if c["type"] == "Active" and c["status"] == "False"]
    return str(inactive[0].get("message") or inactive[0]["reason"]) if inactive else ""


def _quota_findings(cluster_queue: Manifest, need: Need) -> Iterator[Finding]:
    queue_name = f"ClusterQueue {name_of(cluster_queue)}"
    groups = cluster_queue["spec"].get("resourceGroups", [])
    covered = {resource for group in groups for resource in group["coveredResources"]}
    requested = [*POD_RESOURCES, *([need.resource] if need.resource else [])]
    if uncovered := [resource for resource in requested if resource not in covered]:
        text = f"{queue_name} covers no {' and no '.join(uncovered)}, which the job's pods ask for"
        yield fail(
            text, "add it to the ClusterQueue's coveredResources, with a quota of each flavor"
        )
        return
    if need.resource is None:
        raise Skip("the job asks for no devices of a plugin, so there is no quota to compare")
    devices = (need.nodes + need.spares) * need.accelerator.devices_per_node
    if need.job.spec.scheduling.min_rollout_devices is not None:
        raise Skip("spec.scheduling.minRolloutDevices: the job may be admitted with fewer devices")
    quotas = {
        flavor["name"]: _quota_limit(resource, borrows="cohortName" in cluster_queue["spec"])
        for group in groups
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == need.resource
    }
    shown = ", ".join(
        f"{name} {'any' if limit is None else limit}" for name, limit in quotas.items()
    )
    text = (
        f"{devices} {need.resource} of one flavor are asked for; {queue_name} has at most: {shown}"
    )
    if any(limit is None or devices <= limit for limit in quotas.values()):
        yield ok(text)
    else:
        yield fail(
            text, "ask for fewer devices, or raise a flavor's quota: the job would wait for ever"
        )


def _quota_limit(resource: Manifest, *, borrows: bool) -> int | None:
    """Return the quota of a flavor's resource, including borrowing; None where only the cohort limits it."""
    nominal = parse_quantity(str(resource["nominalQuota"]))
    if not borrows:
        return nominal
    limit = resource.get("borrowingLimit")
    return None if limit is None else nominal + parse_quantity(str(limit))
