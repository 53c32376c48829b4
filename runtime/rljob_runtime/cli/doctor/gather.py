"""Ask the API server for all facts, one call after the other, each within its deadline.

What may not be seen becomes `Unseen` with the reason; a server that is silent is not asked again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rljob_api.spec.rljob import GROUP, KIND, RLJob
from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.doctor.cluster_facts import (
    Facts,
    Manifest,
    Queue,
    Reference,
    Right,
    Unseen,
    name_of,
)
from rljob_runtime.cli.doctor.need import operator_of, references_of
from rljob_runtime.cli.doctor.rights import ASKED, MAKE_JOBS
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

T = TypeVar("T")

KUEUE = "kueue.x-k8s.io/v1beta2"
CRDS = "customresourcedefinitions"
OPERATOR_NAMESPACE, KUBERAY_NAMESPACE = "rljob-system", "kuberay"
"""Where the docs install them; looked into where not all namespaces may be listed."""
OPERATOR = "app.kubernetes.io/name=rljob,app.kubernetes.io/component=operator"
KUBERAY = "app.kubernetes.io/name=kuberay-operator"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
LIVING = "status.phase!=Succeeded,status.phase!=Failed"


def gather(calls: Calls, job: RLJob | None, manifest: Manifest | None) -> Facts:
    """All facts. manifest: the job as it is written, to try it."""
    asking, here = _Asking(calls), f"/api/v1/namespaces/{calls.namespace}"
    seen = asking.seen
    version = seen(asking.version)
    operators = seen(lambda: asking.deployments(OPERATOR, OPERATOR_NAMESPACE))
    references = references_of(job, operator_of(operators, calls.namespace))
    return Facts(
        where=calls.connection.where,
        namespace=calls.namespace,
        version=version,
        rljob_versions=seen(lambda: asking.served(GROUP)),
        ray_versions=seen(lambda: asking.served("ray.io")),
        rljob_crd=seen(lambda: asking.crd(f"rljobs.{GROUP}")),
        ray_crd=seen(lambda: asking.crd("rayclusters.ray.io")),
        operators=operators,
        kuberays=seen(lambda: asking.deployments(KUBERAY, KUBERAY_NAMESPACE)),
        nodes=seen(lambda: asking.all("/api/v1/nodes", "nodes")),
        pods=seen(lambda: asking.all("/api/v1/pods", "pods", fieldSelector=LIVING)),
        own_pods=seen(lambda: asking.all(f"{here}/pods", "pods", fieldSelector=LIVING)),
        storage_classes=seen(
            lambda: asking.all("/apis/storage.k8s.io/v1/storageclasses", "storageclasses")
        ),
        claims=seen(lambda: asking.all(f"{here}/persistentvolumeclaims", "persistentvolumeclaims")),
        references={one: seen(partial(asking.type_of, one)) for one in references},
        rights=(rights := seen(asking.rights)),
        queue=_queue(asking, calls.namespace, job),
        verdict=_verdict(asking, manifest, rights),
    )


def _queue(asking: "_Asking", namespace: str, job: RLJob | None) -> Queue | None:
    """What Kueue has for the job; None where it waits in no queue of Kueue's."""
    if job is None or job.spec.scheduling.scheduler != "kueue":
        return None
    scheduling, of_cluster = job.spec.scheduling, f"/apis/{KUEUE}"
    here = f"{of_cluster}/namespaces/{namespace}/localqueues"
    local = asking.seen(lambda: asking.all(here, "localqueues"))
    own = [] if isinstance(local, Unseen) else local
    names = [str(q["spec"]["clusterQueue"]) for q in own if name_of(q) == scheduling.queue]
    priority = scheduling.priority_class
    return Queue(
        served=asking.seen(lambda: KUEUE.rpartition("/")[2] in asking.served("kueue.x-k8s.io")),
        local_queues=local,
        cluster_queue=asking.seen(lambda: asking.one(of_cluster, "clusterqueues", names[0]))
        if names
        else None,
        priority_class=asking.seen(
            lambda: asking.one(of_cluster, "workloadpriorityclasses", str(priority))
        )
        if priority
        else "",
    )


def _verdict(asking: "_Asking", manifest: Manifest | None, rights: Any) -> str | Unseen:
    if manifest is None:
        return Unseen("no job was given")
    if isinstance(rights, dict) and not rights.get(MAKE_JOBS):
        return Unseen(f"you may not {MAKE_JOBS}, so no dry run")
    return asking.seen(lambda: asking.dry_run(manifest))


class _Asking:
    """The questions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._silence = ""

    def seen(self, ask: Callable[[], T]) -> T | Unseen:
        """The answer, or why there is none."""
        if self._silence:
            return Unseen(self._silence)
        try:
            return ask()
        except NoAnswer as error:
            self._silence = str(error)
            return Unseen(str(error))
        except ClusterError as error:
            return Unseen(str(error))

    def version(self) -> str:
        return str(self._calls.request("get", "/version", resource="/version")["gitVersion"])

    def served(self, group: str) -> tuple[str, ...]:
        """Versions of an API group; everybody may ask for them."""
        try:
            found = self._calls.request("get", f"/apis/{group}", resource=group)
        except NotThere:
            return ()
        return tuple(version["version"] for version in found["versions"])

    def crd(self, name: str) -> Manifest | None:
        path = f"/apis/apiextensions.k8s.io/v1/{CRDS}/{name}"
        try:
            return self._calls.request("get", path, resource=CRDS, name=name)
        except NotThere:
            return None

    def one(self, api: str, resource: str, name: str) -> Manifest | None:
        """An object of the cluster, None where there is none of the name."""
        try:
            return self._calls.request(
                "get", f"{api}/{resource}/{name}", resource=resource, name=name
            )
        except NotThere:
            return None

    def type_of(self, reference: Reference) -> str | None:
        """A Secret's type, "" of a ConfigMap; None where there is none. Its row of a table is asked for, not
        the object: what it holds stays where it is, in annotations of `kubectl apply` too."""
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

    def all(self, path: str, resource: str, **query: str) -> tuple[Manifest, ...]:
        found = self._calls.request("list", path, resource=resource, query=query)
        return tuple(found.get("items") or ())

    def deployments(self, labels: str, namespace: str) -> tuple[Manifest, ...]:
        """Of all namespaces, else of the one where the docs install them."""
        try:
            return self.all("/apis/apps/v1/deployments", "deployments", labelSelector=labels)
        except NoAnswer:
            raise
        except ClusterError as refused:
            path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            try:
                found = self.all(path, "deployments", labelSelector=labels)
            except NoAnswer:
                raise
            except ClusterError:
                raise refused from None
            if not found:
                raise
            return found

    def rights(self) -> dict[Right, bool]:
        return {right: self._may(right) for right in ASKED}

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
        """What the API server says against the job; "" where it takes it."""
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
        except ClusterError as refused:
            return str(refused)
        return ""
