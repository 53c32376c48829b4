"""What is known of a cluster: manifests as the API server gave them, or why they were not to be seen."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Unseen:
    """In place of a fact that could not be looked at. why: as the API server or the connection says."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One thing that a user may do in the namespace. resource: as in a role, e.g. pods/exec."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Reference:
    """A Secret or ConfigMap of the namespace. resource: secrets or configmaps. field: that names it. pulls:
    whether images are pulled with it."""

    resource: str
    name: str
    field: str
    pulls: bool = False

    def __str__(self) -> str:
        return f"{'Secret' if self.resource == 'secrets' else 'ConfigMap'} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What Kueue has under the names of a job. served: its API. local_queues: of the namespace.
    cluster_queue: of the job's LocalQueue. priority_class: "" where the job names none."""

    served: bool | Unseen
    local_queues: tuple[Manifest, ...] | Unseen
    cluster_queue: Manifest | Unseen | None
    priority_class: Manifest | Unseen | Literal[""] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A cluster, asked once. An empty tuple or None: looked, and not there.

    where: context and address. version: of the API server. rljob_versions, ray_versions: of their API
    groups that are served. rljob_crd, ray_crd: their CustomResourceDefinitions. operators, kuberays:
    Deployments. pods: of all namespaces, that have not ended; own_pods: of the namespace alone, as are
    claims. references: what the job and the operator name; a Secret's type, "" of a ConfigMap, None where
    there is none. queue: of a job that waits in one of Kueue's, None of others. verdict: what the API
    server says against the job in a dry run; "" where it takes it.
    """

    where: str
    namespace: str
    version: str | Unseen
    rljob_versions: tuple[str, ...] | Unseen
    ray_versions: tuple[str, ...] | Unseen
    rljob_crd: Manifest | Unseen | None
    ray_crd: Manifest | Unseen | None
    operators: tuple[Manifest, ...] | Unseen
    kuberays: tuple[Manifest, ...] | Unseen
    nodes: tuple[Manifest, ...] | Unseen
    pods: tuple[Manifest, ...] | Unseen
    own_pods: tuple[Manifest, ...] | Unseen
    storage_classes: tuple[Manifest, ...] | Unseen
    claims: tuple[Manifest, ...] | Unseen
    references: Mapping[Reference, str | Unseen | None]
    rights: Mapping[Right, bool] | Unseen
    queue: Queue | None = None
    verdict: str | Unseen


def name_of(manifest: Manifest) -> str:
    """An object's name."""
    return str(manifest["metadata"]["name"])
