"""The kinds that the operator reads or writes, as lightkube wants to be told. Used by `kube_client` only."""

from lightkube.core.resource import ApiInfo
from lightkube.generic_resource import (
    GenericNamespacedResource,
    GenericNamespacedStatus,
    create_api_info,
)

# apiVersion, kind → plural; all of them live in namespaces.
PLURALS = {
    ("rljob.io/v1alpha1", "RLJob"): "rljobs",
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

Resource = type[GenericNamespacedResource]


def _resources() -> dict[tuple[str, str], Resource]:
    """Classes of our own: lightkube's registry is global and has typed models of some of these."""
    return {
        (version, kind): type(
            kind, (GenericNamespacedResource,), {"_api_info": _api_info(version, kind, plural)}
        )
        for (version, kind), plural in PLURALS.items()
    }


def _api_info(api_version: str, kind: str, plural: str) -> ApiInfo:
    group, _, version = api_version.rpartition("/")
    return create_api_info(group, version, kind, plural)


def _rljob_status() -> type[GenericNamespacedStatus]:
    whole = _api_info("rljob.io/v1alpha1", "RLJob", "rljobs")
    info = ApiInfo(
        resource=whole.resource,
        parent=whole.resource,
        plural=whole.plural,
        verbs=["patch"],
        action="status",
    )
    return type("RLJobStatus", (GenericNamespacedStatus,), {"_api_info": info})


RESOURCES = _resources()
RLJOB_STATUS = _rljob_status()
