"""Whether Kueue can ever admit a job: its queue, what that covers, its quota, the job's priority. Pure."""

from collections.abc import Iterator

from rljob_api.spec.section import parse_quantity
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, Queue, Unseen, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, seen, skipped, warn
from rljob_runtime.cli.doctor.need import Need

OF_ALL_PODS = ("cpu", "memory")
"""That each of a job's pods asks for."""


def queue(facts: Facts, need: Need) -> Iterator[Finding]:
    """A line for the queue and one for its quota of devices; one for a priority that is not to be found."""
    found, wanted = facts.queue, need.job.spec.scheduling
    if found is None:
        return
    if not seen(found.served):
        text = "kueue.x-k8s.io/v1beta2 is not served, which spec.scheduling asks for"
        yield fail(text, "install Kueue 0.15 or newer, or leave spec.scheduling.scheduler out")
        return
    if found.priority_class is None:
        text = f"there is no WorkloadPriorityClass {wanted.priority_class}"
        yield fail(text, "make it, or name another in spec.scheduling.priorityClass")
    elif isinstance(found.priority_class, Unseen):
        yield skipped(found.priority_class.why)
    yield from _of_queues(found, facts.namespace, need)


def _of_queues(found: Queue, namespace: str, need: Need) -> Iterator[Finding]:
    name, there = need.job.spec.scheduling.queue, seen(found.local_queues)
    local = next((one for one in there if name_of(one) == name), None)
    if local is None:
        names = ", ".join(sorted(map(name_of, there))) or "none"
        text = f"namespace {namespace} has no LocalQueue {name}; there are: {names}"
        yield fail(text, "make the LocalQueue, or name another in spec.scheduling.queue")
        return
    cluster_name = str(local["spec"]["clusterQueue"])
    what = f"LocalQueue {name} of ClusterQueue {cluster_name}"
    cluster = seen(found.cluster_queue)
    if cluster is None:
        yield fail(f"{what}, which there is not", f"make ClusterQueue {cluster_name}")
        return
    if why := _stopped(local) or _stopped(cluster):
        yield warn(f"{what} admits nothing: {why}", "the job waits until that has changed")
    else:
        yield ok(what)
    yield from _of_quota(cluster, need)


def _stopped(queue: Manifest) -> str:
    """Why the queue admits nothing, "" where it may."""
    policy = queue["spec"].get("stopPolicy", "None")
    if policy != "None":
        return f"the stopPolicy of {name_of(queue)} is {policy}"
    conditions = queue.get("status", {}).get("conditions", [])
    inactive = [c for c in conditions if c["type"] == "Active" and c["status"] == "False"]
    return str(inactive[0].get("message") or inactive[0]["reason"]) if inactive else ""


def _of_quota(cluster: Manifest, need: Need) -> Iterator[Finding]:
    what = f"ClusterQueue {name_of(cluster)}"
    groups = cluster["spec"].get("resourceGroups", [])
    covered = {resource for group in groups for resource in group["coveredResources"]}
    asked = [*OF_ALL_PODS, *([need.resource] if need.resource else [])]
    if lacking := [resource for resource in asked if resource not in covered]:
        text = f"{what} covers no {' and no '.join(lacking)}, which the job's pods ask for"
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
        flavor["name"]: _most(resource, borrows="cohortName" in cluster["spec"])
        for group in groups
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == need.resource
    }
    shown = ", ".join(f"{name} {'any' if most is None else most}" for name, most in quotas.items())
    text = f"{devices} {need.resource} of one flavor are asked for; {what} has at most: {shown}"
    if any(most is None or devices <= most for most in quotas.values()):
        yield ok(text)
    else:
        yield fail(
            text, "ask for fewer devices, or raise a flavor's quota: the job would wait for ever"
        )


def _most(resource: Manifest, *, borrows: bool) -> int | None:
    """Of a flavor's resource, borrowed ones among it; None where the cohort alone limits them."""
    own = parse_quantity(str(resource["nominalQuota"]))
    if not borrows:
        return own
    limit = resource.get("borrowingLimit")
    return None if limit is None else own + parse_quantity(str(limit))
