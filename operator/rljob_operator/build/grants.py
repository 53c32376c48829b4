"""What an admission by Kueue adds to a job's pods: nodes and taints of flavors, updates of admission checks.

`apply` reads the flavors of a Workload, `cluster` adds the grants to its pod templates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rljob_operator.build.names import Manifest, Role

ROLES: tuple[Role, ...] = ("head", "worker", "warehouse")
TOPOLOGY_GATE = "kueue.x-k8s.io/topology"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGrant:
    """What is added to the pods of a role. gates: scheduling gates that Kueue opens once it has chosen their
    nodes."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Manifest, ...] = ()
    gates: tuple[str, ...] = ()


def flavors(workload: Manifest) -> set[str]:
    """Return the names of the ResourceFlavors that the Workload was admitted to."""
    return {
        name for pods in assignments(workload).values() for name in pods.get("flavors", {}).values()
    }


def grants(workload: Manifest, flavors: Mapping[str, Manifest]) -> dict[Role, PodGrant]:
    """Return what pods get, by role: from flavors and admission checks, and the labels by which Kueue selects
    them.

    A warehouse follows its worker: it tolerates what the worker does, and its own flavor does not restrict
    its nodes.
    """
    by_role = {role: _grant(workload, role, flavors) for role in ROLES}
    warehouse = by_role["warehouse"]
    extra = tuple(t for t in by_role["worker"].tolerations if t not in warehouse.tolerations)
    by_role["warehouse"] = replace(
        warehouse, node_selector={}, gates=(), tolerations=warehouse.tolerations + extra
    )
    return by_role


def with_grant(template: Manifest, grant: PodGrant) -> Manifest:
    """Return a pod template with what its role was granted."""
    meta, spec = dict(template["metadata"]), dict(template["spec"])
    meta["labels"] = {**meta.get("labels", {}), **grant.labels}
    meta["annotations"] = {**meta.get("annotations", {}), **grant.annotations}
    if grant.node_selector:
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **grant.node_selector}
    tolerations = spec.get("tolerations", [])
    spec["tolerations"] = tolerations + [t for t in grant.tolerations if t not in tolerations]
    if grant.gates:
        spec["schedulingGates"] = [{"name": gate} for gate in grant.gates]
    return {"metadata": meta, "spec": spec}


def assignments(workload: Manifest) -> dict[str, Manifest]:
    """Return what a Workload was admitted to, by set of pods; {} while it holds no quota."""
    admission = workload.get("status", {}).get("admission") or {}
    return {pods["name"]: pods for pods in admission.get("podSetAssignments", [])}


def _grant(workload: Manifest, role: Role, flavors_by_name: Mapping[str, Manifest]) -> PodGrant:
    assigned = assignments(workload).get(role, {})
    gated = bool(assigned.get("topologyAssignment"))
    labels: dict[str, str] = {"kueue.x-k8s.io/podset": role}
    # Kueue finds gated pods by this annotation; on other pods it would look for a Workload's slices.
    annotations = {"kueue.x-k8s.io/workload": workload["metadata"]["name"]} if gated else {}
    selector: dict[str, str] = {}
    tolerations: list[Any] = []
    for name in dict.fromkeys(assigned.get("flavors", {}).values()):
        spec = flavors_by_name[name].get("spec", {})
        selector |= spec.get("nodeLabels", {})
        tolerations += spec.get("tolerations", [])
    for check in workload["status"].get("admissionChecks", []):
        for update in check.get("podSetUpdates", []):
            if update["name"] == role:
                labels |= update.get("labels", {})
                annotations |= update.get("annotations", {})
                selector |= update.get("nodeSelector", {})
                tolerations += update.get("tolerations", [])
    return PodGrant(
        labels=labels,
        annotations=annotations,
        node_selector=selector,
        tolerations=tuple(t for i, t in enumerate(tolerations) if t not in tolerations[:i]),
        gates=(TOPOLOGY_GATE,) if gated else (),
    )
