"""The pod template of each role: restricted by Pod Security's strictest profile, with the user's settings
added.

Called by `cluster`. containers[0] is Ray's, whose command KubeRay writes.
"""

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.pod_names import DOCK_DIRECTORY, ROLE_LABEL, RUNS_DIRECTORY
from rljob_api.topology.worker_pods import (
    PULL_POLICY,
    USER,
    ascend_pod_labels,
    device_resource_name,
    is_ascend,
)
from rljob_operator.build import ports
from rljob_operator.build.accelerators import (
    NO_DEVICES,
    device_environment,
    device_limits,
    inject,
    super_pod_annotations,
)
from rljob_operator.build.entrypoint import DRIVER_FILE
from rljob_operator.build.gang import Gang
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import (
    Manifest,
    Role,
    child_name,
    pod_labels,
    pod_selector,
)
from rljob_operator.build.resources import resources
from rljob_operator.build.spares import warm_environment
from rljob_operator.build.volumes import mounts, shares_memory, volumes
from rljob_operator.settings import Settings

HOSTNAME = "kubernetes.io/hostname"
NODE_NAME = "metadata.name"
"""Node field for affinity; a requirement allows only one value."""

HEAD_PORTS = {
    "gcs": ports.GCS,
    "dashboard": ports.DASHBOARD,
    "client": ports.CLIENT,
    "metrics": ports.METRICS,
    "status": ports.STATUS,
}
OTHER_PORTS = {"metrics": ports.METRICS}
MISSED_NODES = {"period_ms": "1000", "timeout_ms": "3000", "failure_threshold": "3"}
"""How Ray checks the health of nodes: it detects a lost node after 12 s; by its own defaults after 65 s."""
END_SECONDS = 10
"""Grace period of a worker or a warehouse, which saves nothing at its end."""
TOGETHER_SECONDS = 30
"""Grace period if all pods of a job may be deleted together: as long as the head's, whose driver saves."""
STOP_DRIVER = f"""\
pid=$(cat {DRIVER_FILE}) && grep -q rljob /proc/$pid/cmdline && kill -TERM $pid || exit 0
while kill -0 $pid; do sleep 0.2; done"""
"""Hook before the head ends, whatever deletes it: a running driver saves a checkpoint."""
AWAIT_DRIVER = f"""\
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["FQ_RAY_IP"], {ports.STATUS}), timeout=2).close()
    except OSError:
        break
    time.sleep(0.2)"""
"""Hook before a worker or a warehouse ends, if all pods of a job may be deleted together: wait until the
driver has ended. KubeRay sets the head's address."""


def pod_template(
    job: RLJob,
    identity: JobIdentity,
    settings: Settings,
    *,
    role: Role,
    gang: Gang,
    avoid: tuple[str, ...] = (),
) -> Manifest:
    """Return the template of the role's pods. avoid: nodes that they avoid if they can."""
    spec = job.spec
    user = getattr(spec.pod_templates, role) or PodTemplate()
    annotations = user.annotations | gang.annotations(role)
    labels = user.labels | pod_labels(identity, role) | {ROLE_LABEL: role}
    if is_ascend(spec.accelerator):
        if role == "worker":
            labels = ascend_pod_labels(device_resource_name(spec.accelerator)) | labels
            annotations = super_pod_annotations(spec) | annotations
        else:
            annotations = NO_DEVICES | annotations
    pod: Manifest = {
        "containers": [
            _container(spec, user, identity, settings, role=role) | _before_the_end(role, gang)
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _end_seconds(role, gang),
        "automountServiceAccountToken": user.service_account_name is not None,
        "tolerations": _tolerations(spec, settings, role=role),
        "volumes": volumes(spec, user, identity, settings, role=role),
        **_placement(spec.accelerator, user, identity, role=role, avoid=avoid),
        **_names(user, settings, identity, gang),
    }
    if role == "worker":
        inject(pod, spec.accelerator, identity)
    return {
        "metadata": _without_empty(labels=labels, annotations=annotations),
        "spec": _without_empty(**pod),
    }


def image_of(spec: RLJobSpec, settings: Settings, *, role: Role) -> str:
    """Return the image of a role's pods: the job's own, else the operator's for the job's devices."""
    usual = settings.ascend_image if is_ascend(spec.accelerator) else settings.runtime_image
    user = getattr(spec.pod_templates, role) or PodTemplate()
    return str(user.image or spec.image or usual)


def _container(
    spec: RLJobSpec, user: PodTemplate, identity: JobIdentity, settings: Settings, *, role: Role
) -> Manifest:
    amounts = resources(role, spec, user.resources)
    if role == "worker":
        amounts["limits"] |= device_limits(spec.accelerator, settings)
    open_ports = HEAD_PORTS if role == "head" else OTHER_PORTS
    return _without_empty(
        name=f"ray-{role}",
        image=image_of(spec, settings, role=role),
        imagePullPolicy=PULL_POLICY,
        ports=[{"name": name, "containerPort": port} for name, port in open_ports.items()],
        envFrom=_credentials(spec, role=role),
        env=_environment(spec, user, settings, role=role),
        resources=_without_empty(**amounts),
        securityContext={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        volumeMounts=mounts(spec, user, identity, settings, role=role),
    )


def _before_the_end(role: Role, gang: Gang) -> Manifest:
    """Return the hook that a container runs first when its pod is deleted."""
    if role != "head" and not gang.suspends:
        return {}
    command = ["sh", "-c", STOP_DRIVER] if role == "head" else ["python", "-c", AWAIT_DRIVER]
    return {"lifecycle": {"preStop": {"exec": {"command": command}}}}


def _end_seconds(role: Role, gang: Gang) -> int | None:
    """Return the grace period, or None for the default of Kubernetes, which is as long as
    TOGETHER_SECONDS."""
    if role == "head":
        return None
    return TOGETHER_SECONDS if gang.suspends else END_SECONDS


def _environment(
    spec: RLJobSpec, user: PodTemplate, settings: Settings, *, role: Role
) -> list[Manifest]:
    variables: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},
        # A stopped run saves a checkpoint first; Ray kills it after three seconds by default.
        {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(settings.stop_seconds)},
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        # Some data sets iterate over sets: their items must not depend on the process.
        {"name": "PYTHONHASHSEED", "value": "0"},
    ]
    if role == "head":
        variables.append({"name": "RLJOB_STATUS_PORT", "value": str(ports.STATUS)})
        variables += [
            {"name": f"RAY_health_check_{k}", "value": v} for k, v in MISSED_NODES.items()
        ]
    if role != "warehouse":
        variables.append({"name": "RLJOB_CACHE", "value": f"{RUNS_DIRECTORY}/.cache"})
    if shares_memory(spec, settings):
        variables.append({"name": "RLJOB_DOCK_DIRECTORY", "value": DOCK_DIRECTORY})
    if role == "worker":
        variables += device_environment(spec.accelerator) + warm_environment(spec)
    user_variables = [v.model_dump(by_alias=True, exclude_none=True) for v in user.env]
    replaced = {variable["name"] for variable in user_variables}
    return [variable for variable in variables if variable["name"] not in replaced] + user_variables


def _credentials(spec: RLJobSpec, *, role: Role) -> list[Manifest]:
    """Return the Secrets of remote storage and trackers, which only the head uses. Variables of `env` replace
    a Secret's."""
    storage = spec.checkpoint.storage
    sections = (storage.remote if storage is not None else None, spec.tracking)
    names = [section.secret_name for section in sections if section is not None]
    named = dict.fromkeys(name for name in names if name is not None)
    return [{"secretRef": {"name": name}} for name in named] if role == "head" else []


def _tolerations(spec: RLJobSpec, settings: Settings, *, role: Role) -> list[Manifest]:
    """Return the tolerations. The operator's own end a pod soon after its node is gone; warehouses follow
    their worker."""
    templates = spec.pod_templates
    roles = ("worker", "warehouse") if role == "warehouse" else (role,)
    user_tolerations = [
        toleration.model_dump(by_alias=True, exclude_none=True)
        for name in roles
        for toleration in (getattr(templates, name) or PodTemplate()).tolerations
    ]
    lost_node = [
        {
            "key": f"node.kubernetes.io/{reason}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": settings.unreachable_seconds,
        }
        for reason in ("not-ready", "unreachable")
    ]
    return lost_node + [t for i, t in enumerate(user_tolerations) if t not in user_tolerations[:i]]


def _placement(
    accelerator: Accelerator,
    user: PodTemplate,
    identity: JobIdentity,
    *,
    role: Role,
    avoid: tuple[str, ...],
) -> Manifest:
    """Place one worker per node, and at most one warehouse pod per node, next to a worker."""
    selector = user.node_selector
    if role == "worker":
        selector = accelerator.node_selector | selector
    placement: Manifest = {"nodeSelector": dict(selector)} if selector else {}
    if role == "head":
        return placement
    affinity = {"podAntiAffinity": _same_node(identity, role)}
    if avoid:
        affinity["nodeAffinity"] = node_preference(avoid)
    if role == "warehouse":
        affinity["podAffinity"] = _same_node(identity, "worker")
    return placement | {"affinity": affinity}


def node_preference(nodes: tuple[str, ...]) -> Manifest:
    """Return a preference: if no other node has room, healthy chips of these nodes are better than none."""
    names = [{"key": NODE_NAME, "operator": "NotIn", "values": [node]} for node in nodes]
    term = {"weight": 100, "preference": {"matchFields": names}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [term]}


def avoiding_nodes(template: Manifest, nodes: tuple[str, ...]) -> Manifest:
    """Return a pod template that avoids these nodes and no others."""
    spec = template["spec"]
    affinity = {k: v for k, v in spec.get("affinity", {}).items() if k != "nodeAffinity"}
    if nodes:
        affinity["nodeAffinity"] = node_preference(nodes)
    others = {key: value for key, value in spec.items() if key != "affinity"}
    return template | {"spec": others | ({"affinity": affinity} if affinity else {})}


def avoided_nodes(template: Manifest) -> tuple[str, ...]:
    """Return the nodes that a pod template avoids."""
    affinity = template.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    preferences = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    fields = [
        field
        for preference in preferences
        for field in preference["preference"].get("matchFields", [])
    ]
    return tuple(node for field in fields if field["key"] == NODE_NAME for node in field["values"])


def _same_node(identity: JobIdentity, role: Role) -> Manifest:
    term = {
        "labelSelector": {"matchLabels": pod_selector(identity, role)},
        "topologyKey": HOSTNAME,
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _names(user: PodTemplate, settings: Settings, identity: JobIdentity, gang: Gang) -> Manifest:
    """Return the objects that the pod refers to: its scheduler, class, account, and secrets of registries."""
    secrets = [*settings.image_pull_secrets, *(secret.name for secret in user.image_pull_secrets)]
    return _without_empty(
        schedulerName=gang.scheduler_name,
        priorityClassName=user.priority_class_name or gang.priority_class,
        serviceAccountName=user.service_account_name or child_name(identity),
        imagePullSecrets=[{"name": name} for name in dict.fromkeys(secrets)],
    )


def _without_empty(**members: object) -> Manifest:
    """Return the members that are set: empty lists and mappings are left out, False stays."""
    return {key: value for key, value in members.items() if value not in (None, [], {})}
