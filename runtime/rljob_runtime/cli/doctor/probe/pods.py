"""Manifests of a probe's pods: like a job's worker pods, but they sleep until a command is run in them.
Pure."""

from dataclasses import replace
from pathlib import Path

from rljob_api.topology.pod_names import RUNS_DIRECTORY
from rljob_api.topology.worker_pods import (
    DRIVER_PATHS,
    EMULATED_REQUESTS,
    HCCL_PORT,
    PULL_POLICY,
    USER,
    ascend_pod_labels,
)
from rljob_runtime.cli.doctor.cluster_facts import Manifest
from rljob_runtime.cli.doctor.probe.plan import OtherImage, ProbePlan

LABEL = "rljob.io/probe"
ROLE_LABEL = "rljob.io/probe-role"
CONTAINER = "probe"
PROGRAM = "RLJOB_PROBE"
"""Environment variable with the program's text, which is too long for the URL of an exec request."""
EXTRA_LIFETIME_SECONDS = 180
"""A pod that is not deleted ends this long after the deadline of the wait for pods."""
FOLDERS = (RUNS_DIRECTORY, "/tmp")


def command(subcommand: str, arguments: str) -> list[str]:
    """Return a command of the pod. bash reads CANN's environment where the image has one."""
    return ["bash", "-c", f'exec python -c "${PROGRAM}" "$@"', "probe", subcommand, arguments]


def pods_of(plan: ProbePlan) -> list[Manifest]:
    """Return the manifests of all pods of the probe."""
    anti_affinity = {"affinity": {"podAntiAffinity": _one_per_node(plan)}}
    identical = [_pod(plan, name, role="worker") for name in plan.ranks]
    return [
        *(pod | {"spec": pod["spec"] | anti_affinity} for pod in identical),
        *(_pod(_image_plan(plan, other), other.pod, role=other.role) for other in plan.images),
    ]


def _image_plan(plan: ProbePlan, other: OtherImage) -> ProbePlan:
    """Return the plan reduced to what a pod that only pulls an image needs."""
    return replace(
        plan,
        image=other.image,
        pull_secrets=other.pull_secrets,
        selector=other.selector,
        tolerations=other.tolerations,
        ascend=False,
        resource=None,
        requests=EMULATED_REQUESTS,
        limits={},
        env=[],
        claim=None,
        host_driver=False,
    )


def _pod(plan: ProbePlan, name: str, *, role: str) -> Manifest:
    lifetime = int(plan.seconds) + EXTRA_LIFETIME_SECONDS
    labels = {LABEL: plan.name, ROLE_LABEL: role, "app.kubernetes.io/part-of": "rljob"}
    runs: Manifest = {"emptyDir": {}}
    if plan.claim is not None:
        runs = {"persistentVolumeClaim": {"claimName": plan.claim}}
    drivers = DRIVER_PATHS.items() if plan.host_driver else ()
    shm = {"medium": "Memory", "sizeLimit": str(plan.shm_bytes)}
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": lifetime,
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "shared-mem", "emptyDir": shm},
            {"name": "runs", **runs},
            *(
                {"name": _volume(path), "hostPath": {"path": path, "type": kind}}
                for path, kind in drivers
            ),
        ],
        "containers": [_container(plan, lifetime)],
    }
    optional = {
        "nodeSelector": plan.selector,
        "tolerations": plan.tolerations,
        "imagePullSecrets": [{"name": secret} for secret in plan.pull_secrets],
        "schedulerName": plan.scheduler,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": plan.namespace,
            "labels": labels | (ascend_pod_labels(plan.resource) if plan.ascend else {}),
        },
        "spec": spec | {key: value for key, value in optional.items() if value},
    }


def _container(plan: ProbePlan, lifetime: int) -> Manifest:
    devices = {plan.resource: str(plan.devices)} if plan.resource else {}
    program = Path(__file__).with_name("in_pod.py").read_text(encoding="utf-8")
    defaults: list[Manifest] = [{"name": "HOME", "value": "/tmp"}]
    if plan.ascend:
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        defaults += [
            {"name": "HCCL_IF_IP", "valueFrom": address},
            {"name": "HCCL_IF_BASE_PORT", "value": str(HCCL_PORT)},
            {"name": "HCCL_CONNECT_TIMEOUT", "value": "120"},
        ]
    user_names = {variable["name"] for variable in plan.env}
    retained = [variable for variable in defaults if variable["name"] not in user_names]
    return {
        "name": CONTAINER,
        "image": plan.image,
        "imagePullPolicy": PULL_POLICY,
        "command": ["sleep", str(lifetime)],
        "env": [*retained, *plan.env, {"name": PROGRAM, "value": program}],
        "resources": {"requests": plan.requests, "limits": plan.limits | devices},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "shared-mem", "mountPath": "/dev/shm"},
            {"name": "runs", "mountPath": RUNS_DIRECTORY},
            *(
                {"name": _volume(path), "mountPath": path, "readOnly": True}
                for path in (DRIVER_PATHS if plan.host_driver else ())
            ),
        ],
    }


def _volume(path: str) -> str:
    return f"driver-{list(DRIVER_PATHS).index(path)}"


def _one_per_node(plan: ProbePlan) -> Manifest:
    term = {
        "labelSelector": {"matchLabels": {LABEL: plan.name, ROLE_LABEL: "worker"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
