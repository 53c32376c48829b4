"""Devices of nodes beside what pods have asked for, and whether the job's worker pods have a place. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.topology.pod_names import JOB_LABEL
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, Unseen, name_of
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, seen, warn
from rljob_runtime.cli.doctor.need import Need

VENDOR = "huawei.com/"
HARD = ("NoSchedule", "NoExecute")
SHOWN_NODES = 6
PLUGIN = (
    "install Ascend's device plugin, or offer emulated devices: the chart's "
    "emulatedDevicePlugin.enabled (docs/device-plugin.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One node. devices: of the resource. asked: of them by pods; None where pods were not seen. unfit: why
    the job's worker pods cannot go there, "" where they can."""

    node: str
    devices: int
    asked: int | None
    unfit: str

    @property
    def free(self) -> int:
        """Devices that a new pod may have; all of them where pods were not seen."""
        return self.devices - (self.asked or 0)

    def __str__(self) -> str:
        asked = "" if self.asked is None else f", {self.asked} asked for"
        return f"{self.node} {self.devices}{asked}"


def devices(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """What nodes offer; one line for each resource."""
    nodes = seen(facts.nodes)
    named = [need.resource] if need is not None and need.resource else []
    offered = {key for node in nodes for key in _allocatable(node) if key.startswith(VENDOR)}
    for resource in sorted({*offered, *named}):
        offers = [offer for offer in offers_of(facts, resource, None) if offer.devices]
        total = sum(offer.devices for offer in offers)
        if not offers:
            remedy = f"set accelerator.resourceName to one of {', '.join(sorted(offered))}"
            yield fail(f"no node offers {resource}", remedy if offered else PLUGIN)
            continue
        unseen = f"; pods were not seen: {facts.pods.why}" if isinstance(facts.pods, Unseen) else ""
        where = some_of(map(str, offers))
        yield ok(f"{resource}: {total} on {count_of_nodes(len(offers))} ({where}){unseen}")
    if not offered and not named:
        remedy = f"for jobs on emulated devices nothing; else {PLUGIN}"
        yield warn(f"none of {count_of_nodes(len(nodes))} offers {VENDOR}* devices", remedy)


def placement(facts: Facts, need: Need) -> Iterator[Finding]:
    """Each of the job's worker pods has a node of its own, with its devices."""
    seen(facts.nodes)
    if need.accelerator.injection == "dra":
        raise Skip("accelerator.injection: dra, whose devices are no resource of nodes")
    per_node = _per_node(need)
    what = f"{per_node} {need.resource}" if need.resource else "no device of a plugin"
    wanted = need.nodes + need.spares
    spares = f", {need.spares} of them spare" if need.spares else ""
    wants = f"{count_of_nodes(wanted)} with {what} each{spares}"
    offers, fit = offers_of(facts, need.resource, need), offers_that_fit(facts, need)
    free = [offer for offer in fit if offer.free >= per_node]
    if len(free) >= wanted:
        yield ok(f"{wants}: {count_of_nodes(len(free))} can take a worker pod now")
    elif len(fit) >= wanted:
        busy = some_of(str(offer) for offer in fit if offer not in free)
        text = f"{wants}: {len(free)} now, {len(fit)} once other pods have ended ({busy})"
        yield warn(text, "wait, or end what holds them: kubectl get rljobs -A")
    else:
        why = some_of(_why(offer, per_node) for offer in offers if offer not in fit)
        text = f"{wants}: {len(fit)} of {count_of_nodes(len(offers))} could take a worker pod"
        text = f"{text} ({why})" if why else text
        if len(fit) >= need.nodes:
            most = len(fit) - need.nodes
            yield warn(text, f"set accelerator.spareNodes to at most {most}, or add nodes")
        else:
            yield fail(text, _remedy(need, offers))


def offers_of(facts: Facts, resource: str | None, need: Need | None) -> list[Offer]:
    """Of every node. need: whose pods shall go there; its own that run already do not count as asked for."""
    asked = None if isinstance(facts.pods, Unseen) else _asked(facts.pods, resource, facts, need)
    return [
        Offer(
            node=name_of(node),
            devices=_allocatable(node).get(resource or "", 0),
            asked=None if asked is None else asked.get(name_of(node), 0),
            unfit=_unfit(node, need),
        )
        for node in sorted(seen(facts.nodes), key=name_of)
    ]


def offers_that_fit(facts: Facts, need: Need) -> list[Offer]:
    """Of nodes that one of the job's worker pods may go to, now or once other pods have ended."""
    per_node = _per_node(need)
    offers = offers_of(facts, need.resource, need)
    return [offer for offer in offers if not offer.unfit and offer.devices >= per_node]


def _per_node(need: Need) -> int:
    return need.accelerator.devices_per_node if need.resource else 0


def _remedy(need: Need, offers: list[Offer]) -> str:
    sizes = sorted((offer.devices for offer in offers if not offer.unfit), reverse=True)
    if need.resource is None:
        return f"set accelerator.nodes to at most {len(sizes)}, or add nodes"
    enough = sum(size >= need.accelerator.devices_per_node for size in sizes)
    if enough:
        return f"set accelerator.nodes to at most {enough}, or add nodes"
    if len(sizes) >= need.nodes and (most := sizes[need.nodes - 1]):
        return f"set accelerator.devicesPerNode to at most {most}, or add nodes"
    if any(offer.devices for offer in offers):
        return "change accelerator.nodeSelector or podTemplates.worker.tolerations, or add nodes"
    return PLUGIN


def _why(offer: Offer, per_node: int) -> str:
    return f"{offer.node}: {offer.unfit or f'has {offer.devices}, {per_node} are asked for'}"


def _unfit(node: Manifest, need: Need | None) -> str:
    """Why no worker pod can go there."""
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
        if taint["effect"] in HARD and not any(_tolerates(t, taint) for t in tolerations):
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


def _asked(
    pods: Iterable[Manifest], resource: str | None, facts: Facts, need: Need | None
) -> dict[str, int]:
    """Devices that pods have, by node."""
    own = (facts.namespace, need.job.metadata.name) if need is not None else None
    found: dict[str, int] = {}
    for pod in pods:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName")
        job = (metadata.get("namespace"), metadata.get("labels", {}).get(JOB_LABEL))
        if node and job != own:
            amounts = (
                c.get("resources", {}).get("limits") or {} for c in pod["spec"]["containers"]
            )
            found[node] = found.get(node, 0) + sum(int(a.get(resource, 0)) for a in amounts)
    return found


def _allocatable(node: Manifest) -> dict[str, int]:
    amounts = node.get("status", {}).get("allocatable") or {}
    return {key: int(amount) for key, amount in amounts.items() if "/" in key and amount.isdigit()}


def count_of_nodes(number: int) -> str:
    """Such as "2 nodes"."""
    return f"{number} node" if number == 1 else f"{number} nodes"


def some_of(parts: Iterable[str]) -> str:
    """The first of them, and how many more there are."""
    given = list(parts)
    more = len(given) - SHOWN_NODES
    return "; ".join(given[:SHOWN_NODES]) + (f"; {more} more" if more > 0 else "")
