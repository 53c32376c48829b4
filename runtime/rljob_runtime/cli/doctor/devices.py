"""Compare the devices of nodes with what pods request, and check that the worker pods fit. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.topology.pod_names import JOB_LABEL
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, UnreadableFact, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, require, warn
from rljob_runtime.cli.doctor.need import Need

VENDOR = "huawei.com/"
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
SHOWN_NODES = 6
INSTALL_PLUGIN = (
    "install Ascend's device plugin, or offer emulated devices: the chart's "
    "emulatedDevicePlugin.enabled (docs/device-plugin.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The devices that one node offers. devices: of the resource. requested: how many of them pods request;
    None where pods could not be listed. unfit: why worker pods cannot run on the node, "" where they can."""

    node: str
    devices: int
    requested: int | None
    unfit: str

    @property
    def free(self) -> int:
        """Return the devices that a new pod may use; all of them where pods could not be listed."""
        return self.devices - (self.requested or 0)

    def __str__(self) -> str:
        requested = "" if self.requested is None else f", {self.requested} asked for"
        return f"{self.node} {self.devices}{requested}"


def devices(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Report the devices that nodes offer, one line per resource."""
    nodes = require(facts.nodes)
    job_resources = [need.resource] if need is not None and need.resource else []
    offered = {key for node in nodes for key in _allocatable(node) if key.startswith(VENDOR)}
    for resource in sorted({*offered, *job_resources}):
        offers = [offer for offer in offers_of(facts, resource, None) if offer.devices]
        total = sum(offer.devices for offer in offers)
        if not offers:
            remedy = f"set accelerator.resourceName to one of {', '.join(sorted(offered))}"
            yield fail(f"no node offers {resource}", remedy if offered else INSTALL_PLUGIN)
            continue
        note = (
            f"; pods were not seen: {facts.pods.why}"
            if isinstance(facts.pods, UnreadableFact)
            else ""
        )
        nodes_text = first_nodes(map(str, offers))
        yield ok(f"{resource}: {total} on {count_of_nodes(len(offers))} ({nodes_text}){note}")
    if not offered and not job_resources:
        remedy = f"for jobs on emulated devices nothing; else {INSTALL_PLUGIN}"
        yield warn(f"none of {count_of_nodes(len(nodes))} offers {VENDOR}* devices", remedy)


def placement(facts: Facts, need: Need) -> Iterator[Finding]:
    """Check that each of the job's worker pods fits a separate node with enough devices."""
    require(facts.nodes)
    if need.accelerator.injection == "dra":
        raise Skip("accelerator.injection: dra, whose devices are no resource of nodes")
    per_node = _per_node(need)
    per_pod = f"{per_node} {need.resource}" if need.resource else "no device of a plugin"
    needed = need.nodes + need.spares
    spares = f", {need.spares} of them spare" if need.spares else ""
    request = f"{count_of_nodes(needed)} with {per_pod} each{spares}"
    offers, fitting = offers_of(facts, need.resource, need), offers_that_fit(facts, need)
    free = [offer for offer in fitting if offer.free >= per_node]
    if len(free) >= needed:
        yield ok(f"{request}: {count_of_nodes(len(free))} can take a worker pod now")
    elif len(fitting) >= needed:
        busy_nodes = first_nodes(str(offer) for offer in fitting if offer not in free)
        text = (
            f"{request}: {len(free)} now, {len(fitting)} once other pods have ended ({busy_nodes})"
        )
        yield warn(text, "wait, or end what holds them: kubectl get rljobs -A")
    else:
        reasons = first_nodes(
            _shortage(offer, per_node) for offer in offers if offer not in fitting
        )
        text = f"{request}: {len(fitting)} of {count_of_nodes(len(offers))} could take a worker pod"
        text = f"{text} ({reasons})" if reasons else text
        if len(fitting) >= need.nodes:
            max_spares = len(fitting) - need.nodes
            yield warn(text, f"set accelerator.spareNodes to at most {max_spares}, or add nodes")
        else:
            yield fail(text, _remedy(need, offers))


def offers_of(facts: Facts, resource: str | None, need: Need | None) -> list[Offer]:
    """Return the offer of every node. need: the job to place; its running pods do not count as requests."""
    requested = (
        None
        if isinstance(facts.pods, UnreadableFact)
        else _requested_devices(facts.pods, resource, facts, need)
    )
    return [
        Offer(
            node=name_of(node),
            devices=_allocatable(node).get(resource or "", 0),
            requested=None if requested is None else requested.get(name_of(node), 0),
            unfit=_unfit(node, need),
        )
        for node in sorted(require(facts.nodes), key=name_of)
    ]


def offers_that_fit(facts: Facts, need: Need) -> list[Offer]:
    """Return the offers that fit one of the job's worker pods, now or once other pods have ended."""
    per_node = _per_node(need)
    offers = offers_of(facts, need.resource, need)
    return [offer for offer in offers if not offer.unfit and offer.devices >= per_node]


def _per_node(need: Need) -> int:
    return need.accelerator.devices_per_node if need.resource else 0


def _remedy(need: Need, offers: list[Offer]) -> str:
    sizes = sorted((offer.devices for offer in offers if not offer.unfit), reverse=True)
    if need.resource is None:
        return f"set accelerator.nodes to at most {len(sizes)}, or add nodes"
    num_nodes = sum(size >= need.accelerator.devices_per_node for size in sizes)
    if num_nodes:
        return f"set accelerator.nodes to at most {num_nodes}, or add nodes"
    if len(sizes) >= need.nodes and (max_devices := sizes[need.nodes - 1]):
        return f"set accelerator.devicesPerNode to at most {max_devices}, or add nodes"
    if any(offer.devices for offer in offers):
        return "change accelerator.nodeSelector or podTemplates.worker.tolerations, or add nodes"
    return INSTALL_PLUGIN


def _shortage(offer: Offer, per_node: int) -> str:
    return f"{offer.node}: {offer.unfit or f'has {offer.devices}, {per_node} are asked for'}"


def _unfit(node: Manifest, need: Need | None) -> str:
    """Return why no worker pod can run on the node, "" where one can."""
    conditions = {c["type"]: c["status"] for c in node.get("status", {}).get("conditions", [])}
    if conditions.get("Ready") != "True":
        return "is not ready"
    if node.get("spec", {}).get("unschedulable"):
        return "is cordoned"
    labels = node["metadata"].get("labels", {})
    for key, value in need.selector.items() if need is not None else ():
        if labels.get(key) != value:
            return f"lacks label {key}={value}"
    tolerations = need.tolerations if need is not None else []
    for taint in node.get("spec", {}).get("taints") or []:
        if taint["effect"] in BLOCKING_EFFECTS and not any(
            _tolerates(t, taint) for t in tolerations
        ):
            return f"has taint {taint['key']}:{taint['effect']}"
    return ""


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("key") not in (None, "", taint["key"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))


def _requested_devices(
    pods: Iterable[Manifest], resource: str | None, facts: Facts, need: Need | None
) -> dict[str, int]:
    """Return the number of devices that pods request, by node."""
    checked_job = (facts.namespace, need.job.metadata.name) if need is not None else None
    requested: dict[str, int] = {}
    for pod in pods:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        job = (metadata.get("namespace"), metadata.get("labels", {}).get(JOB_LABEL))
        if node and job != checked_job:
            amounts = (
                c.get("resources", {}).get("limits") or {} for c in pod["spec"]["containers"]
            )
            requested[node] = requested.get(node, 0) + sum(int(a.get(resource, 0)) for a in amounts)
    return requested


def _allocatable(node: Manifest) -> dict[str, int]:
    amounts = node.get("status", {}).get("allocatable") or {}
    return {key: int(amount) for key, amount in amounts.items() if "/" in key and amount.isdigit()}


def count_of_nodes(number: int) -> str:
    """Return the number with its noun, such as "2 nodes"."""
    return f"{number} node" if number == 1 else f"{number} nodes"


def first_nodes(texts: Iterable[str]) -> str:
    """Join the first texts, and append how many more there are."""
    items = list(texts)
    more = len(items) - SHOWN_NODES
    return "; ".join(items[:SHOWN_NODES]) + (f"; {more} more" if more > 0 else "")
