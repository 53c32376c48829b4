"""The kinds that the operator reads or writes, as lightkube describes them. Used by `kube_client` only."""

from typing import Any

from lightkube.core.resource import ApiInfo
from lightkube.generic_resource import (
    GenericGlobalResource,
    GenericNamespacedResource,
    GenericNamespacedStatus,
    create_api_info,
)

from rljob_api.spec.rljob import GROUP, KIND, VERSION

RLJOB = (f"{GROUP}/{VERSION}", KIND)
WORKLOAD = ("kueue.x-k8s.io/v1beta2", "Workload")
# apiVersion, kind → plural; all of them live in namespaces.
PLURALS = {
    RLJOB: "rljobs",
    WORKLOAD: "workloads",
    ("ray.io/v1", "RayCluster"): "rayclusters",
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "PersistentVolumeClaim"): "persistentvolumeclaims",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("policy/v1", "PodDisruptionBudget"): "poddisruptionbudgets",
    ("resource.k8s.io/v1", "ResourceClaimTemplate"): "resourceclaimtemplates",
    ("scheduling.volcano.sh/v1beta1", "PodGroup"): "podgroups",
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup"): "podgroups",
}

# Kinds without namespaces: apiVersion, kind → plural.
CLUSTER_PLURALS = {
    ("kueue.x-k8s.io/v1beta2", "ResourceFlavor"): "resourceflavors",
    ("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass"): "workloadpriorityclasses",
}

Resource = type[GenericNamespacedResource]


def _resources(plurals: dict[tuple[str, str], str], base: type) -> dict[tuple[str, str], Any]:
    """Return separate classes: lightkube's registry is global and has typed models of some of these."""
    return {
        (version, kind): type(kind, (base,), {"_api_info": _api_info(version, kind, plural)})
        for (version, kind), plural in plurals.items()
    }


def _api_info(api_version: str, kind: str, plural: str) -> ApiInfo:
    group, _, version = api_version.rpartition("/")
    return create_api_info(group, version, kind, plural)


def _status(version: str, kind: str) -> type[GenericNamespacedStatus]:
    parent = _api_info(version, kind, PLURALS[version, kind])
    info = ApiInfo(
        resource=parent.resource,
        parent=parent.resource,
        plural=parent.plural,
        verbs=["patch"],
        action="status",
    )
    return type(f"{kind}Status", (GenericNamespacedStatus,), {"_api_info": info})


RESOURCES: dict[tuple[str, str], Resource] = _resources(PLURALS, GenericNamespacedResource)
CLUSTER_RESOURCES = _resources(CLUSTER_PLURALS, GenericGlobalResource)
STATUSES = {key: _status(*key) for key in (RLJOB, WORKLOAD)}
