"""The pod template of each role: restricted by Pod Security's strictest profile, then the user's part.

Called by `cluster`. containers[0] is Ray's, whose command KubeRay writes.
"""

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.pod_names import ROLE_LABEL, RUNS_DIRECTORY
from rljob_api.topology.worker_pods import ASCEND_POD_LABELS, PULL_POLICY, USER, is_ascend
from rljob_operator.build import ports
from rljob_operator.build.accelerators import (
    NO_DEVICES,
    device_environment,
    device_limits,
    inject,
)
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
from rljob_operator.build.volumes import DOCK_DIRECTORY, mounts, shares_memory, volumes
from rljob_operator.settings import Settings

HOSTNAME = "kubernetes.io/hostname"

HEAD_PORTS = {
    "gcs": ports.GCS,
    "dashboard": ports.DASHBOARD,
    "client": ports.CLIENT,
    "metrics": ports.METRICS,
    "status": ports.STATUS,
}
OTHER_PORTS = {"metrics": ports.METRICS}


def pod_template(
    job: RLJob, identity: Identity, settings: Settings, *, role: Role, gang: Gang
) -> Manifest:
    """Template of the role's pods."""
    spec = job.spec
    own = getattr(spec.pod_templates, role) or PodTemplate()
    annotations = dict(own.annotations)
    labels = own.labels | pod_labels(identity, role) | {ROLE_LABEL: role}
    if is_ascend(spec.accelerator):
        if role == "worker":
            labels = ASCEND_POD_LABELS | labels
        else:
            annotations = NO_DEVICES | annotations
    pod: Manifest = {
        "containers": [_container(spec, own, identity, settings, role=role)],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "enableServiceLinks": False,
        "automountServiceAccountToken": own.service_account_name is not None,
        "tolerations": _tolerations(spec, settings, role=role),
        "volumes": volumes(spec, own, identity, settings, role=role),
        **_placement(spec.accelerator, own, identity, role=role),
        **_names(own, settings, identity, gang),
    }
    if role == "worker":
        inject(pod, spec.accelerator, identity)
    return {"metadata": _given(labels=labels, annotations=annotations), "spec": _given(**pod)}


def _container(
    spec: RLJobSpec, own: PodTemplate, identity: Identity, settings: Settings, *, role: Role
) -> Manifest:
    amounts = resources(role, spec, own.resources)
    if role == "worker":
        amounts["limits"] |= device_limits(spec.accelerator, settings)
    image = settings.ascend_image if is_ascend(spec.accelerator) else settings.runtime_image
    open_ports = HEAD_PORTS if role == "head" else OTHER_PORTS
    return _given(
        name=f"ray-{role}",
        image=own.image or spec.image or image,
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
    if role != "warehouse":
        ours.append({"name": "RLJOB_CACHE", "value": f"{RUNS_DIRECTORY}/.cache"})
    if shares_memory(spec, settings):
        ours.append({"name": "RLJOB_DOCK_DIRECTORY", "value": DOCK_DIRECTORY})
    if role == "worker":
        ours += device_environment(spec.accelerator)
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
    accelerator: Accelerator, own: PodTemplate, identity: Identity, *, role: Role
) -> Manifest:
    """One worker a node, at most one warehouse pod a node, and that one beside a worker."""
    selector = own.node_selector
    if role == "worker":
        selector = accelerator.node_selector | selector
    placement: Manifest = {"nodeSelector": dict(selector)} if selector else {}
    if role == "head":
        return placement
    affinity = {"podAntiAffinity": _same_node(identity, role)}
    if role == "warehouse":
        affinity["podAffinity"] = _same_node(identity, "worker")
    return placement | {"affinity": affinity}


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
