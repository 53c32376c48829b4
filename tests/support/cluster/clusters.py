"""Clusters as `rljob doctor` knows them: a healthy one, and what differs."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

from cluster_jobs import JOB, merged

from rljob_api.check.load import read_job
from rljob_api.schema.crd import crd
from rljob_api.topology.pod_names import JOB_LABEL
from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest
from rljob_runtime.cli.doctor.examine import examine
from rljob_runtime.cli.doctor.findings import Finding
from rljob_runtime.cli.doctor.installed import operator_of_deployment
from rljob_runtime.cli.doctor.need import Need, need_of, operator_of
from rljob_runtime.cli.doctor.rights import CHECKED_RIGHTS

NPU = "huawei.com/Ascend910"
RUNTIME, ASCEND = "example.com/rljob-runtime:1", "example.com/rljob-ascend:1"


def node(
    name: str,
    devices: int = 8,
    *,
    labels: Any = None,
    taints: Any = None,
    ready: bool = True,
    kernel: str = "6.6.0",
) -> dict[str, Any]:
    """A node with so many devices."""
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": taints or []},
        "status": {
            "allocatable": {"cpu": "64", NPU: str(devices)} if devices else {"cpu": "64"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "nodeInfo": {"kernelVersion": kernel},
        },
    }


def pod(on: str, devices: int, *, job: str = "other") -> Manifest:
    """A pod of a job that holds devices of a node."""
    limits = {"limits": {NPU: str(devices)}}
    return {
        "metadata": {"name": f"{job}-{on}", "namespace": "research", "labels": {JOB_LABEL: job}},
        "spec": {"nodeName": on, "containers": [{"name": "ray-worker", "resources": limits}]},
    }


def deployment(
    name: str = "rljob-operator",
    namespace: str = "rljob-system",
    *,
    image: str = "",
    ready: int = 1,
    arguments: tuple[str, ...] = (),
) -> Manifest:
    """An operator's Deployment, as the chart makes it."""
    given = [f"--runtime-image={RUNTIME}", f"--ascend-image={ASCEND}", *arguments]
    labels = {} if image else {"app.kubernetes.io/version": version("rljob")}
    container = {"name": "operator", "image": image or "example.com/rljob:dev", "args": given}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


def claim(name: str, *modes: str, phase: str = "Bound", of_class: str = "nfs") -> Manifest:
    """A PersistentVolumeClaim."""
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": list(modes), "storageClassName": of_class},
        "status": {"phase": phase},
    }


def storage_class(name: str, *, default: bool = False, binding: str = "Immediate") -> Manifest:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "volumeBindingMode": binding,
    }


DEPLOYED = deployment(arguments=("--emulated-device-plugin",))
OPERATOR = operator_of_deployment(DEPLOYED)
HEALTHY = Facts(
    where="context lab, https://lab.example:6443",
    namespace="research",
    version="v1.34.4",
    rljob_versions=("v1beta1", "v1alpha1"),
    ray_versions=("v1", "v1alpha1"),
    rljob_crd=crd(),
    ray_crd=None,
    operators=(DEPLOYED,),
    kuberays=(deployment("kuberay-operator", "kuberay", image="kuberay/operator:v1.6.2"),),
    nodes=(node("node-a"), node("node-b")),
    pods=(),
    namespace_pods=(),
    storage_classes=(storage_class("nfs", default=True),),
    claims=(claim("runs", "ReadWriteMany"),),
    references={},
    rights=dict.fromkeys(CHECKED_RIGHTS, True),
    verdict="",
)


def cluster(**facts: Any) -> Facts:
    """The healthy cluster, but for these facts."""
    return replace(HEALTHY, **facts)


def need(facts: Facts = HEALTHY, **spec: Any) -> Need:
    """What a job on two nodes of two devices asks of the cluster; spec: what differs."""
    storage = {"checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "runs"}}}}
    job = read_job(merged(merged(JOB, {"spec": storage}), {"spec": spec}))
    return need_of(job, operator_of(facts.operators, facts.namespace))


def found(check: str, facts: Facts, asked: Need | None = None) -> list[Finding]:
    """What one check says of a cluster, and of a job there."""
    return [finding for finding in examine(facts, asked) if finding.check == check]


def only(check: str, facts: Facts, asked: Need | None = None) -> Finding:
    """The only line of a check."""
    (finding,) = found(check, facts, asked)
    return finding
