"""What an admission by Kueue adds to a job's pods: nodes and taints of flavors, updates of admission checks.

`apply` reads the flavors of a Workload, `cluster` puts the grants into its pod templates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_operator.build.names import Manifest, Role

ROLES: tuple[Role, ...] = ("head", "worker", "warehouse")
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What is added to the pods of a role. gates: that Kueue opens once it has chosen their nodes."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    gates: tuple[str, ...] = ()


def flavors(found: Manifest) -> set[str]:
    """Names of the ResourceFlavors that the Workload was admitted to."""
    return {
        name for pods in assignments(found).values() for name in pods.get("flavors", {}).values()
    }


def grants(found: Manifest, flavors: Mapping[str, Manifest]) -> dict[Role, Grant]:
    """What pods get, by role: of flavors, of admission checks, and how Kueue knows them.

    A warehouse goes wherever its worker goes: it tolerates what that one does, and no flavor of its own says
    which nodes it may go to.
    """
    given = {role: _grant(found, role, flavors) for role in ROLES}
    warehouse = given["warehouse"]
    also = tuple(t for t in given["worker"].tolerations if t not in warehouse.tolerations)
    given["warehouse"] = replace(
        warehouse, node_selector={}, gates=(), tolerations=warehouse.tolerations + also
    )
    return given


def placed(template: Manifest, grant: Grant) -> Manifest:
    """A pod template with what its role was granted."""
    meta, spec = dict(template["metadata"]), dict(template["spec"])
    meta["labels"] = {**meta.get("labels", {}), **grant.labels}
    meta["annotations"] = {**meta.get("annotations", {}), **grant.annotations}
    if grant.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **grant.node_selector}
    there = spec.get("tolerations", [])
    spec["tolerations"] = there + [t for t in grant.tolerations if t not in there]
    if grant.gates:
        spec["schedulingGates"] = [{"name": gate} for gate in grant.gates]
    return {"metadata": meta, "spec": spec}


def assignments(found: Manifest) -> dict[str, Manifest]:
    """What a Workload was admitted to, by set of pods; {} while it holds no quota."""
    admission = found.get("status", {}).get("admission") or {}
    return {pods["name"]: pods for pods in admission.get("podSetAssignments", [])}


def _grant(found: Manifest, role: Role, known: Mapping[str, Manifest]) -> Grant:
    assigned = assignments(found).get(role, {})
    gated = bool(assigned.get("topologyAssignment"))
    labels: dict[str, str] = {"kueue.x-k8s.io/podset": role}
    # Kueue finds the pods behind its gate by it, and would look for a Workload's slices of other pods.
    annotations = {"kueue.x-k8s.io/workload": found["metadata"]["name"]} if gated else {}
    selector: dict[str, str] = {}
    tolerations: list[Any] = []
    for name in dict.fromkeys(assigned.get("flavors", {}).values()):
        spec = known[name].get("spec", {})
        selector |= spec.get("nodeLabels", {})
        tolerations += spec.get("tolerations", [])
    for check in found["status"].get("admissionChecks", []):
        for update in check.get("podSetUpdates", []):
            if update["name"] == role:
                labels |= update.get("labels", {})
                annotations |= update.get("annotations", {})
                selector |= update.get("nodeSelector", {})
                tolerations += update.get("tolerations", [])
    return Grant(
        labels=labels,
        annotations=annotations,
        node_selector=selector,
        tolerations=tuple(t for i, t in enumerate(tolerations) if t not in tolerations[:i]),
        gates=(TOPOLOGY_GATE,) if gated else (),
    )
