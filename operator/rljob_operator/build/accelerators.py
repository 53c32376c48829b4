"""How a node's devices are added to a worker pod, and how Ray and HCCL are configured for them.

KubeRay maps no Ascend resource to Ray's, so the Ray resource is always set. `rljob_api.spec.products` lists
the numbers of devices that a product allows.
"""

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.ray_resources import device_resource
from rljob_api.topology.super_pods import SP_BLOCK, sp_block
from rljob_api.topology.worker_pods import (
    DRIVER_PATHS,
    HCCL_PORT,
    device_resource_name,
    is_ascend,
)
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, child_name, metadata
from rljob_operator.settings import Settings

DEVICE_CLASS = "npu.huawei.com"
CLAIM = "devices"
CONNECT_SECONDS = 1800
"""Time that HCCL's ranks wait for each other: longer than the slowest pull of an image."""

NO_DEVICES = {"huawei.com/skip-ascend-plugin": "enabled"}
"""Ascend's scheduler plugin ignores pods with this annotation."""


PLACING = (SP_BLOCK, "huawei.com/")
"""Prefixes of annotations that Ascend's scheduler plugin reads, from the PodGroup before the worker pods."""


def super_pod_annotations(spec: RLJobSpec) -> dict[str, str]:
    """Return the annotations of a worker pod that is placed in super-pods."""
    block = sp_block(spec)
    return {} if block is None else {SP_BLOCK: str(block)}


def placing_annotations(spec: RLJobSpec) -> dict[str, str]:
    """Return the annotations of the PodGroup of the job's pods, if Volcano places them."""
    if spec.scheduling.scheduler != "volcano" or not is_ascend(spec.accelerator):
        return {}
    user_annotations = (spec.pod_templates.worker or PodTemplate()).annotations
    annotations = super_pod_annotations(spec) | user_annotations
    return {name: value for name, value in annotations.items() if name.startswith(PLACING)}


def ray_resources(accelerator: Accelerator) -> dict[str, str]:
    """Return the Ray resources of a worker, as KubeRay writes them."""
    return {device_resource(accelerator): str(accelerator.devices_per_node)}


def device_limits(accelerator: Accelerator, settings: Settings) -> dict[str, str]:
    """Return the extended resources of a worker pod; a resource claim replaces them."""
    by_plugin = is_ascend(accelerator) or settings.emulated_device_plugin
    if not by_plugin or accelerator.injection == "dra":
        return {}
    return {device_resource_name(accelerator): str(accelerator.devices_per_node)}


def device_environment(accelerator: Accelerator) -> list[Manifest]:
    """Return the variables of HCCL. The device plugin and Ray set which devices are visible."""
    if not is_ascend(accelerator):
        return []
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": "HCCL_IF_IP", "valueFrom": address},
        {"name": "HCCL_IF_BASE_PORT", "value": str(HCCL_PORT)},
        {"name": "HCCL_CONNECT_TIMEOUT", "value": str(CONNECT_SECONDS)},
    ]


def inject(pod: Manifest, accelerator: Accelerator, identity: JobIdentity) -> None:
    """Add to a worker's pod spec what its kind of injection needs besides the limit."""
    container = pod["containers"][0]
    if accelerator.injection == "hostPath":
        for index, (path, kind) in enumerate(DRIVER_PATHS.items()):
            name = f"rljob-driver-{index}"
            pod["volumes"].append({"name": name, "hostPath": {"path": path, "type": kind}})
            mount = {"name": name, "mountPath": path, "readOnly": True}
            container["volumeMounts"].append(mount)
    elif accelerator.injection == "dra":
        claim = {"name": CLAIM, "resourceClaimTemplateName": child_name(identity)}
        pod["resourceClaims"] = [claim]
        container["resources"]["claims"] = [{"name": CLAIM}]


def claim_template(accelerator: Accelerator, identity: JobIdentity) -> Manifest:
    """Return the template of each worker pod's claim on its devices."""
    devices = {
        "deviceClassName": DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": accelerator.devices_per_node,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(identity, child_name(identity), component="devices"),
        "spec": {"spec": {"devices": {"requests": [{"name": CLAIM, "exactly": devices}]}}},
    }
