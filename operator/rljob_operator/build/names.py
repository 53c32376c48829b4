"""Names, labels, owners and places in a pod: what links a job with its children.

Each kind of child has one name a job: NAME-rljob, and NAME-GROUP for RayClusters, so that no two
jobs of a namespace ever meet. KubeRay takes names of at most 53 characters; ours have at most 46.
"""

from collections.abc import Mapping
from typing import Any, Literal

from rljob_api.check.pod_rules import OWN_KEYS
from rljob_api.spec.rljob import GROUP, KIND, VERSION, RLJobSpec
from rljob_api.spec.scheduling import PRIORITY_LABELS, QUEUE_LABELS
from rljob_api.topology import pod_names
from rljob_api.topology.pod_names import CONFIG_DIRECTORY, JOB_LABEL, JOB_UID_LABEL, ROLE_LABEL
from rljob_operator.build.identity import Identity

Manifest = dict[str, Any]
Role = Literal["head", "worker", "warehouse"]

MANAGER = "rljob-operator"

CONFIG_KEY = "rljob.yaml"
CONFIG_FILE = f"{CONFIG_DIRECTORY}/{CONFIG_KEY}"
"""Where the head finds the job."""
TOKEN_KEY = "auth_token"
OF_TOOLS = (*OWN_KEYS, "kopf.zalando.org/", "kubectl.kubernetes.io/", "meta.helm.sh/")
QUEUEING = {*QUEUE_LABELS.values(), *PRIORITY_LABELS.values()}
OPERATOR_LABELS = {"app.kubernetes.io/name": "rljob", "app.kubernetes.io/component": "operator"}


def child_name(identity: Identity) -> str:
    """Name of each of the job's children but the RayClusters."""
    return f"{identity.name}-rljob"


def cluster_name(job: str, group: int) -> str:
    """Name of a job's RayCluster number `group`; attempts on the same cluster share it."""
    return f"{job}-{group}"


def head_host(cluster: str, namespace: str) -> str:
    """Where the head of a RayCluster is found, from any namespace: KubeRay's service."""
    return f"{cluster}-head-svc.{namespace}.svc"


def run_directory(spec: RLJobSpec, identity: Identity) -> str:
    """The run's folder in the pods of head and workers."""
    storage = spec.checkpoint.storage
    return pod_names.run_directory(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        path=storage.path if storage is not None else None,
    )


def pod_selector(identity: Identity, role: Role | None = None) -> dict[str, str]:
    """Labels that the job's pods alone have, or those of one role."""
    own = {JOB_UID_LABEL: identity.uid}
    return own if role is None else own | {ROLE_LABEL: role}


def labels(identity: Identity, component: str) -> dict[str, str]:
    """Labels of a child that is no pod."""
    return {"app.kubernetes.io/name": "rljob"} | pod_labels(identity, component)


def pod_labels(identity: Identity, component: str) -> dict[str, str]:
    """Labels of a pod. Its `name` and `created-by` are KubeRay's, whose services select by them."""
    return {
        "app.kubernetes.io/instance": identity.name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "rljob",
        "app.kubernetes.io/managed-by": MANAGER,
        JOB_LABEL: identity.name,
        JOB_UID_LABEL: identity.uid,
    }


def of_users(entries: Mapping[str, str]) -> dict[str, str]:
    """Labels or annotations of an RLJob that its RayCluster gets, too: not those of KubeRay, of the operator
    and of what wrote the RLJob, nor those of queues, which spec.scheduling names."""
    return {
        key: value
        for key, value in entries.items()
        if not key.startswith(OF_TOOLS) and key not in QUEUEING
    }


def metadata(identity: Identity, name: str, *, component: str) -> Manifest:
    """Metadata of a child: it goes when the job goes."""
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
