"""Facts about a cluster: manifests as the API server returned them, or why they are unavailable."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class UnreadableFact:
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

    served: bool | UnreadableFact
    local_queues: tuple[Manifest, ...] | UnreadableFact
    cluster_queue: Manifest | UnreadableFact | None
    priority_class: Manifest | UnreadableFact | Literal[""] | None


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
    version: str | UnreadableFact
    rljob_versions: tuple[str, ...] | UnreadableFact
    ray_versions: tuple[str, ...] | UnreadableFact
    rljob_crd: Manifest | UnreadableFact | None
    ray_crd: Manifest | UnreadableFact | None
    operators: tuple[Manifest, ...] | UnreadableFact
    kuberays: tuple[Manifest, ...] | UnreadableFact
    nodes: tuple[Manifest, ...] | UnreadableFact
    pods: tuple[Manifest, ...] | UnreadableFact
    namespace_pods: tuple[Manifest, ...] | UnreadableFact
    storage_classes: tuple[Manifest, ...] | UnreadableFact
    claims: tuple[Manifest, ...] | UnreadableFact
    references: Mapping[Reference, str | UnreadableFact | None]
    rights: Mapping[Right, bool] | UnreadableFact
    queue: KueueFacts | None = None
    verdict: str | UnreadableFact


def name_of(manifest: Manifest) -> str:
    """Return the name of an object."""
    return str(manifest["metadata"]["name"])
