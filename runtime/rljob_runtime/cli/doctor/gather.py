"""Query the API server for all facts, one call after the other, each within its deadline.

A fact that cannot be read becomes an `UnreadableFact` with the reason. After a call without an answer no
other call is made.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rljob_api.spec.rljob import GROUP, KIND, RLJob
from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.doctor.cluster_facts import (
    Facts,
    KueueFacts,
    Manifest,
    Reference,
    Right,
    UnreadableFact,
    name_of,
)
from rljob_runtime.cli.doctor.need import operator_of, references_of
from rljob_runtime.cli.doctor.rights import CHECKED_RIGHTS, CREATE_JOBS
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

T = TypeVar("T")

KUEUE = "kueue.x-k8s.io/v1beta2"
CRDS = "customresourcedefinitions"
OPERATOR_NAMESPACE, KUBERAY_NAMESPACE = "rljob-system", "kuberay"
"""Where the docs install them; used where the user may not list all namespaces."""
OPERATOR = "app.kubernetes.io/name=rljob,app.kubernetes.io/component=operator"
KUBERAY = "app.kubernetes.io/name=kuberay-operator"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"


def gather(calls: Calls, job: RLJob | None, manifest: Manifest | None) -> Facts:
    """Return all facts. manifest: the job as written, for a dry run."""
    queries, namespace_path = _ClusterQueries(calls), f"/api/v1/namespaces/{calls.namespace}"
    attempt = queries.attempt
    version = attempt(queries.version)
    operators = attempt(lambda: queries.deployments(OPERATOR, OPERATOR_NAMESPACE))
    references = references_of(job, operator_of(operators, calls.namespace))
    return Facts(
        where=calls.connection.where,
        namespace=calls.namespace,
        version=version,
        rljob_versions=attempt(lambda: queries.served_versions(GROUP)),
        ray_versions=attempt(lambda: queries.served_versions("ray.io")),
        rljob_crd=attempt(lambda: queries.crd(f"rljobs.{GROUP}")),
        ray_crd=attempt(lambda: queries.crd("rayclusters.ray.io")),
        operators=operators,
        kuberays=attempt(lambda: queries.deployments(KUBERAY, KUBERAY_NAMESPACE)),
        nodes=attempt(lambda: queries.items("/api/v1/nodes", "nodes")),
        pods=attempt(lambda: queries.items("/api/v1/pods", "pods", fieldSelector=NOT_ENDED)),
        namespace_pods=attempt(
            lambda: queries.items(f"{namespace_path}/pods", "pods", fieldSelector=NOT_ENDED)
        ),
        storage_classes=attempt(
            lambda: queries.items("/apis/storage.k8s.io/v1/storageclasses", "storageclasses")
        ),
        claims=attempt(
            lambda: queries.items(
                f"{namespace_path}/persistentvolumeclaims", "persistentvolumeclaims"
            )
        ),
        references={
            reference: attempt(partial(queries.type_of, reference)) for reference in references
        },
        rights=(rights := attempt(queries.rights)),
        queue=_queue(queries, calls.namespace, job),
        verdict=_verdict(queries, manifest, rights),
    )


def _queue(queries: "_ClusterQueries", namespace: str, job: RLJob | None) -> KueueFacts | None:
    """Return Kueue's objects of the job; None where its scheduler is not Kueue."""
    if job is None or job.spec.scheduling.scheduler != "kueue":
        return None
    scheduling, cluster_path = job.spec.scheduling, f"/apis/{KUEUE}"
    queues_path = f"{cluster_path}/namespaces/{namespace}/localqueues"
    local_queues = queries.attempt(lambda: queries.items(queues_path, "localqueues"))
    listed = [] if isinstance(local_queues, UnreadableFact) else local_queues
    names = [str(q["spec"]["clusterQueue"]) for q in listed if name_of(q) == scheduling.queue]
    priority = scheduling.priority_class
    return KueueFacts(
        served=queries.attempt(
            lambda: KUEUE.rpartition("/")[2] in queries.served_versions("kueue.x-k8s.io")
        ),
        local_queues=local_queues,
        cluster_queue=queries.attempt(
            lambda: queries.cluster_object(cluster_path, "clusterqueues", names[0])
        )
        if names
        else None,
        priority_class=queries.attempt(
            lambda: queries.cluster_object(cluster_path, "workloadpriorityclasses", str(priority))
        )
        if priority
        else "",
    )


def _verdict(
    queries: "_ClusterQueries", manifest: Manifest | None, rights: Any
) -> str | UnreadableFact:
    if manifest is None:
        return UnreadableFact("no job was given")
    if isinstance(rights, dict) and not rights.get(CREATE_JOBS):
        return UnreadableFact(f"you may not {CREATE_JOBS}, so no dry run")
    return queries.attempt(lambda: queries.dry_run(manifest))


class _ClusterQueries:
    """Queries of one cluster; after one without an answer the others are not sent."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._no_answer = ""

    def attempt(self, query: Callable[[], T]) -> T | UnreadableFact:
        """Return the answer of the query, or why there is none."""
        if self._no_answer:
            return UnreadableFact(self._no_answer)
        try:
            return query()
        except NoAnswer as error:
            self._no_answer = str(error)
            return UnreadableFact(str(error))
        except ClusterError as error:
            return UnreadableFact(str(error))

    def version(self) -> str:
        """Return the API server's version, such as v1.34.1."""
        return str(self._calls.request("get", "/version", resource="/version")["gitVersion"])

    def served_versions(self, group: str) -> tuple[str, ...]:
        """Return the served versions of an API group, which every user may read."""
        try:
            api_group = self._calls.request("get", f"/apis/{group}", resource=group)
        except NotThere:
            return ()
        return tuple(version["version"] for version in api_group["versions"])

    def crd(self, name: str) -> Manifest | None:
        """Return the CustomResourceDefinition, or None if it is not installed."""
        path = f"/apis/apiextensions.k8s.io/v1/{CRDS}/{name}"
        try:
            return self._calls.request("get", path, resource=CRDS, name=name)
        except NotThere:
            return None

    def cluster_object(self, api: str, resource: str, name: str) -> Manifest | None:
        """Return a cluster-scoped object; None where none has the name."""
        try:
            return self._calls.request(
                "get", f"{api}/{resource}/{name}", resource=resource, name=name
            )
        except NotThere:
            return None

    def type_of(self, reference: Reference) -> str | None:
        """Return a Secret's type, "" for a ConfigMap, None where it does not exist. The call requests a row
        of a table, not the object: its contents, and those in annotations of `kubectl apply`, are not
        sent."""
        path = f"/api/v1/namespaces/{self._calls.namespace}/{reference.resource}/{reference.name}"
        try:
            table = self._calls.request(
                "get",
                path,
                resource=reference.resource,
                name=reference.name,
                query={"includeObject": "None"},
                accept=TABLE,
            )
        except NotThere:
            return None
        columns = [column["name"] for column in table["columnDefinitions"]]
        row = dict(zip(columns, table["rows"][0]["cells"], strict=True))
        return str(row.get("Type", ""))

    def items(self, path: str, resource: str, **query: str) -> tuple[Manifest, ...]:
        """Return the objects that a list call gives. query: parameters of the call, such as labelSelector."""
        listing = self._calls.request("list", path, resource=resource, query=query)
        return tuple(listing.get("items") or ())

    def deployments(self, labels: str, namespace: str) -> tuple[Manifest, ...]:
        """Return the Deployments of all namespaces, else of the one where the docs install them."""
        try:
            return self.items("/apis/apps/v1/deployments", "deployments", labelSelector=labels)
        except NoAnswer:
            raise
        except ClusterError as denied:
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            try:
                deployments = self.items(path, "deployments", labelSelector=labels)
            except NoAnswer:
                raise
            except ClusterError:
                raise denied from None
            if not deployments:
                raise
            return deployments

    def rights(self) -> dict[Right, bool]:
        """Return which rights the caller has in the namespace; the server is queried once for each."""
        return {right: self._may(right) for right in CHECKED_RIGHTS}

    def _may(self, right: Right) -> bool:
        resource, _, sub = right.resource.partition("/")
        attributes = {
            "namespace": self._calls.namespace,
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": sub,
        }
        kind = "selfsubjectaccessreviews"
        review = self._calls.request(
            "create",
            f"/apis/authorization.k8s.io/v1/{kind}",
            resource=kind,
            body={
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            },
        )
        return bool(review["status"].get("allowed"))

    def dry_run(self, manifest: Manifest) -> str:
        """Return why the API server rejects the job; "" where it accepts it."""
        namespace = self._calls.namespace
        metadata = manifest["metadata"] | {"namespace": namespace}
        try:
            self._calls.request(
                "create",
                f"/apis/{manifest['apiVersion']}/namespaces/{namespace}/rljobs",
                resource=f"rljobs.{GROUP}",
                name=metadata["name"],
                body={**manifest, "kind": KIND, "metadata": metadata},
                query={"dryRun": "All", "fieldValidation": "Strict"},
            )
        except (NoAnswer, NotThere):
            raise
        except ClusterError as rejection:
            return str(rejection)
        return ""
