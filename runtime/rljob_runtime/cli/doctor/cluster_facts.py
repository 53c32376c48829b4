"""Facts about a cluster: manifests as the API server returned them, or why they are unavailable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Replaces a fact that could not be read. why: the error of the API server or the connection."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One action that a role permits in the namespace. resource: as in a role, e.g. pods/exec."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Reference:
    """A Secret or ConfigMap of the namespace. resource: secrets or configmaps. field: the field that names
    it. pulls: whether images are pulled with it."""

    resource: str
    name: str
    field: str
    pulls: bool = False

    def __str__(self) -> str:
        return f"{'Secret' if self.resource == 'secrets' else 'ConfigMap'} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueFacts:
    """Kueue's objects that a job refers to. served: whether its API is served. local_queues: of the
    namespace. cluster_queue: that of the job's LocalQueue. priority_class: "" where the job names none."""

    served: bool | Unavailable
    local_queues: tuple[Manifest, ...] | Unavailable
    cluster_queue: Manifest | Unavailable | None
    priority_class: Manifest | Unavailable | Literal[""] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A snapshot of a cluster. An empty tuple or None means that the object does not exist.

    where: context and address. version: of the API server. rljob_versions, ray_versions: served versions of
    their API groups. rljob_crd, ray_crd: their CustomResourceDefinitions. operators, kuberays: Deployments.
    pods: of all namespaces, those that have not ended; namespace_pods: those of the namespace, as are claims.
    references: objects that the job and the operator name; a Secret's type, "" for a ConfigMap, None for one
    that does not exist. queue: of a job that waits in a queue of Kueue, otherwise None. verdict: why the API
    server rejects the job in a dry run; "" where it accepts it.
    """

    where: str
    namespace: str
    version: str | Unavailable
    rljob_versions: tuple[str, ...] | Unavailable
    ray_versions: tuple[str, ...] | Unavailable
    rljob_crd: Manifest | Unavailable | None
    ray_crd: Manifest | Unavailable | None
    operators: tuple[Manifest, ...] | Unavailable
    kuberays: tuple[Manifest, ...] | Unavailable
    nodes: tuple[Manifest, ...] | Unavailable
    pods: tuple[Manifest, ...] | Unavailable
    namespace_pods: tuple[Manifest, ...] | Unavailable
    storage_classes: tuple[Manifest, ...] | Unavailable
    claims: tuple[Manifest, ...] | Unavailable
    references: Mapping[Reference, str | Unavailable | None]
    rights: Mapping[Right, bool] | Unavailable
    queue: KueueFacts | None = None
    verdict: str | Unavailable


def name_of(manifest: Manifest) -> str:
    """Return the name of an object."""
    return str(manifest["metadata"]["name"])
