"""Names, labels, owners and paths in a pod: what links a job with its children.

Each kind of child has one name per job: NAME-rljob, and NAME-GROUP for RayClusters, so that names of two jobs
in a namespace never collide. KubeRay accepts names of at most 53 characters; these have at most 46.
"""

from collections.abc import Mapping
from typing import Any, Literal

from rljob_api.check.pod_rules import OWN_KEYS
from rljob_api.spec.rljob import GROUP, KIND, VERSION, RLJobSpec
from rljob_api.spec.scheduling import PRIORITY_LABELS, QUEUE_LABELS
from rljob_api.topology import pod_names
from rljob_api.topology.pod_names import CONFIG_DIRECTORY, JOB_LABEL, JOB_UID_LABEL, ROLE_LABEL
from rljob_operator.build.identity import JobIdentity

Manifest = dict[str, Any]
Role = Literal["head", "worker", "warehouse"]

MANAGER = "rljob-operator"

CONFIG_KEY = "rljob.yaml"
CONFIG_FILE = f"{CONFIG_DIRECTORY}/{CONFIG_KEY}"
"""Path of the job's file on the head."""
TOKEN_KEY = "auth_token"
OF_TOOLS = (*OWN_KEYS, "kopf.zalando.org/", "kubectl.kubernetes.io/", "meta.helm.sh/")
QUEUEING = {*QUEUE_LABELS.values(), *PRIORITY_LABELS.values()}
OPERATOR_LABELS = {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/component": "operator"}


def child_name(identity: JobIdentity) -> str:
    """Return the name of each of the job's children except RayClusters."""
    return f"{identity.name}-rljob"


def cluster_name(job: str, group: int) -> str:
    """Return the name of a job's RayCluster number `group`; attempts on the same cluster share it."""
    return f"{job}-{group}"


def head_host(cluster: str, namespace: str) -> str:
    """Return the host name of the head of a RayCluster, from any namespace: KubeRay's service."""
    return f"{cluster}-head-svc.{namespace}.svc"


def run_directory(spec: RLJobSpec, identity: JobIdentity) -> str:
    """Return the run's folder in the pods of head and workers."""
    storage = spec.checkpoint.storage
    return pod_names.run_directory(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        path=storage.path if storage is not None else None,
    )


def pod_selector(identity: JobIdentity, role: Role | None = None) -> dict[str, str]:
    """Return labels that only the job's pods have, or those of one role."""
    selector = {JOB_UID_LABEL: identity.uid}
    return selector if role is None else selector | {ROLE_LABEL: role}


def labels(identity: JobIdentity, component: str) -> dict[str, str]:
    """Return the labels of a child that is not a pod."""
    return {"app.kubernetes.io/name": "rljob"} | pod_labels(identity, component)


def pod_labels(identity: JobIdentity, component: str) -> dict[str, str]:
    """Return the labels of a pod. KubeRay sets `name` and `created-by`, which its services select by."""
    return {
        "app.kubernetes.io/instance": identity.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "rljob",
        "app.kubernetes.io/managed-by": MANAGER,
        JOB_LABEL: identity.name,
        JOB_UID_LABEL: identity.uid,
    }


def of_users(entries: Mapping[str, str]) -> dict[str, str]:
    """Return the labels or annotations of an RLJob that its RayCluster gets, too. Excluded are those of
    KubeRay, of the operator and of the tools that wrote the RLJob, and those of queues, which spec.scheduling
    names."""
    return {
        key: value
        for key, value in entries.items()
        if not key.startswith(OF_TOOLS) and key not in QUEUEING
    }


def metadata(identity: JobIdentity, name: str, *, component: str) -> Manifest:
    """Return the metadata of a child, which is deleted with the job."""
    return {
        "name": name,
        "namespace": identity.namespace,
        "labels": labels(identity, component),
        "ownerReferences": [
            {
                "apiVersion": f"{GROUP}/{VERSION}",
                "kind": KIND,
                "name": identity.name,
                "uid": identity.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
