"""The pod template of each role: restricted by Pod Security's strictest profile, then the user's part.

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
from rljob_operator.build.identity import Identity
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
"""A field, of which a requirement names one."""

HEAD_PORTS = {
    "gcs": ports.GCS,
    "dashboard": ports.DASHBOARD,
    "client": ports.CLIENT,
    "metrics": ports.METRICS,
    "status": ports.STATUS,
}
OTHER_PORTS = {"metrics": ports.METRICS}
MISSED_NODES = {"period_ms": "1000", "timeout_ms": "3000", "failure_threshold": "3"}
"""How Ray asks nodes whether they live: it misses one after 12 s; by its own defaults after 65 s."""
END_SECONDS = 10
"""What a worker or a warehouse, which saves nothing at its end, is given for it."""
TOGETHER_SECONDS = 30
"""What they are given where all pods of a job may go at once: as long as the head, whose driver saves."""
STOP_DRIVER = f"""\
pid=$(cat {DRIVER_FILE}) && grep -q rljob /proc/$pid/cmdline && kill -TERM $pid || exit 0
while kill -0 $pid; do sleep 0.2; done"""
"""Before the head ends, whoever deletes it: the driver, where one lives, leaves a checkpoint."""
AWAIT_DRIVER = f"""\
import os, socket, time
while True:
    try:
        socket.create_connection((os.environ["FQ_RAY_IP"], {ports.STATUS}), timeout=2).close()
    except OSError:
        break
    time.sleep(0.2)"""
"""Before a worker or a warehouse ends, where all pods of a job may go at once: the driver has ended. KubeRay
tells the head's address."""


def pod_template(
    job: RLJob,
    identity: Identity,
    settings: Settings,
    *,
    role: Role,
    gang: Gang,
    avoid: tuple[str, ...] = (),
) -> Manifest:
    """Template of the role's pods. avoid: nodes that they keep off where they can."""
    spec = job.spec
    own = getattr(spec.pod_templates, role) or PodTemplate()
    annotations = own.annotations | gang.annotations(role)
    labels = own.labels | pod_labels(identity, role) | {ROLE_LABEL: role}
    if is_ascend(spec.accelerator):
        if role == "worker":
            labels = ascend_pod_labels(device_resource_name(spec.accelerator)) | labels
            annotations = super_pod_annotations(spec) | annotations
        else:
            annotations = NO_DEVICES | annotations
    pod: Manifest = {
        "containers": [
            _container(spec, own, identity, settings, role=role) | _before_the_end(role, gang)
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
        "automountServiceAccountToken": own.service_account_name is not None,
        "tolerations": _tolerations(spec, settings, role=role),
        "volumes": volumes(spec, own, identity, settings, role=role),
        **_placement(spec.accelerator, own, identity, role=role, avoid=avoid),
        **_names(own, settings, identity, gang),
    }
    if role == "worker":
        inject(pod, spec.accelerator, identity)
    return {"metadata": _given(labels=labels, annotations=annotations), "spec": _given(**pod)}


def image_of(spec: RLJobSpec, settings: Settings, *, role: Role) -> str:
    """The image of a role's pods: the job's own, else the operator's for the job's devices."""
    usual = settings.ascend_image if is_ascend(spec.accelerator) else settings.runtime_image
    own = getattr(spec.pod_templates, role) or PodTemplate()
    return str(own.image or spec.image or usual)


def _container(
    spec: RLJobSpec, own: PodTemplate, identity: Identity, settings: Settings, *, role: Role
) -> Manifest:
    amounts = resources(role, spec, own.resources)
    if role == "worker":
        amounts["limits"] |= device_limits(spec.accelerator, settings)
    open_ports = HEAD_PORTS if role == "head" else OTHER_PORTS
    return _given(
        name=f"ray-{role}",
        image=image_of(spec, settings, role=role),
        imagePullPolicy=PULL_POLICY,
        ports=[{"name": name, "containerPort": port} for name, port in open_ports.items()],
        envFrom=_credentials(spec, role=role),
        env=_environment(spec, own, settings, role=role),
        resources=_given(**amounts),
        securityContext={
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        volumeMounts=mounts(spec, own, identity, settings, role=role),
    )


def _before_the_end(role: Role, gang: Gang) -> Manifest:
    """What a container does first when its pod is deleted."""
    if role != "head" and not gang.suspends:
        return {}
    command = ["sh", "-c", STOP_DRIVER] if role == "head" else ["python", "-c", AWAIT_DRIVER]
    return {"lifecycle": {"preStop": {"exec": {"command": command}}}}


def _end_seconds(role: Role, gang: Gang) -> int | None:
    """None: what Kubernetes gives every pod, which is as long as TOGETHER_SECONDS."""
    if role == "head":
        return None
    return TOGETHER_SECONDS if gang.suspends else END_SECONDS


def _environment(
    spec: RLJobSpec, own: PodTemplate, settings: Settings, *, role: Role
) -> list[Manifest]:
    ours: list[Manifest] = [
        {"name": "HOME", "value": "/tmp"},
        # A stopped run saves a checkpoint first; Ray kills it after three seconds by default.
        {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(settings.stop_seconds)},
        {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        # Some data sets iterate over sets: their items must not depend on the process.
        {"name": "PYTHONHASHSEED", "value": "0"},
    ]
    if role == "head":
        ours.append({"name": "RLJOB_STATUS_PORT", "value": str(ports.STATUS)})
        ours += [{"name": f"RAY_health_check_{k}", "value": v} for k, v in MISSED_NODES.items()]
    if role != "warehouse":
        ours.append({"name": "RLJOB_CACHE", "value": f"{RUNS_DIRECTORY}/.cache"})
    if shares_memory(spec, settings):
        ours.append({"name": "RLJOB_DOCK_DIRECTORY", "value": DOCK_DIRECTORY})
    if role == "worker":
        ours += device_environment(spec.accelerator) + warm_environment(spec)
    given = [v.model_dump(by_alias=True, exclude_none=True) for v in own.env]
    replaced = {variable["name"] for variable in given}
    return [variable for variable in ours if variable["name"] not in replaced] + given


def _credentials(spec: RLJobSpec, *, role: Role) -> list[Manifest]:
    """The head alone speaks with remote storage and trackers. Variables of `env` replace a Secret's."""
    storage = spec.checkpoint.storage
    sections = (storage.remote if storage is not None else None, spec.tracking)
    names = [section.secret_name for section in sections if section is not None]
    named = dict.fromkeys(name for name in names if name is not None)
    return [{"secretRef": {"name": name}} for name in named] if role == "head" else []


def _tolerations(spec: RLJobSpec, settings: Settings, *, role: Role) -> list[Manifest]:
    """Ours end a pod soon on a node that is gone; warehouses go wherever their worker goes."""
    templates = spec.pod_templates
    roles = ("worker", "warehouse") if role == "warehouse" else (role,)
    given = [
        toleration.model_dump(by_alias=True, exclude_none=True)
        for name in roles
        for toleration in (getattr(templates, name) or PodTemplate()).tolerations
    ]
    gone = [
        {
            "key": f"node.kubernetes.io/{reason}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": settings.unreachable_seconds,
        }
        for reason in ("not-ready", "unreachable")
    ]
    return gone + [t for i, t in enumerate(given) if t not in given[:i]]


def _placement(
    accelerator: Accelerator,
    own: PodTemplate,
    identity: Identity,
    *,
    role: Role,
    avoid: tuple[str, ...],
) -> Manifest:
    """One worker a node, at most one warehouse pod a node, and that one beside a worker."""
    selector = own.node_selector
    if role == "worker":
        selector = accelerator.node_selector | selector
    placement: Manifest = {"nodeSelector": dict(selector)} if selector else {}
    if role == "head":
        return placement
    affinity = {"podAntiAffinity": _same_node(identity, role)}
    if avoid:
        affinity["nodeAffinity"] = keep_off(avoid)
    if role == "warehouse":
        affinity["podAffinity"] = _same_node(identity, "worker")
    return placement | {"affinity": affinity}


def keep_off(nodes: tuple[str, ...]) -> Manifest:
    """A wish: where no other node has room, the chips of these that are healthy are better than none."""
    names = [{"key": NODE_NAME, "operator": "NotIn", "values": [node]} for node in nodes]
    term = {"weight": 100, "preference": {"matchFields": names}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [term]}


def keeping_off(template: Manifest, nodes: tuple[str, ...]) -> Manifest:
    """A pod template as it is, which keeps off these nodes and no others."""
    spec = template["spec"]
    affinity = {k: v for k, v in spec.get("affinity", {}).items() if k != "nodeAffinity"}
    if nodes:
        affinity["nodeAffinity"] = keep_off(nodes)
    others = {key: value for key, value in spec.items() if key != "affinity"}
    return template | {"spec": others | ({"affinity": affinity} if affinity else {})}


def kept_off(template: Manifest) -> tuple[str, ...]:
    """The nodes that a pod template keeps off."""
    affinity = template.get("spec", {}).get("affinity", {}).get("nodeAffinity", {})
    wishes = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    fields = [field for wish in wishes for field in wish["preference"].get("matchFields", [])]
    return tuple(node for field in fields if field["key"] == NODE_NAME for node in field["values"])


def _same_node(identity: Identity, role: Role) -> Manifest:
    term = {
        "labelSelector": {"matchLabels": pod_selector(identity, role)},
        "topologyKey": HOSTNAME,
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _names(own: PodTemplate, settings: Settings, identity: Identity, gang: Gang) -> Manifest:
    """What the pod names outside of itself: its scheduler, class, account, secrets of registries."""
    secrets = [*settings.image_pull_secrets, *(secret.name for secret in own.image_pull_secrets)]
    return _given(
        schedulerName=gang.scheduler_name,
        priorityClassName=own.priority_class_name or gang.priority_class,
        serviceAccountName=own.service_account_name or child_name(identity),
        imagePullSecrets=[{"name": name} for name in dict.fromkeys(secrets)],
    )


def _given(**members: object) -> Manifest:
    """Those that are there: an empty list or mapping says nothing. False stays."""
    return {key: value for key, value in members.items() if value not in (None, [], {})}
