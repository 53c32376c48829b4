"""How a node's devices come into a worker pod, and what Ray and HCCL are told of them.

KubeRay maps no Ascend resource to Ray's, so the Ray resource is always given. Which numbers of
devices a product allows is in `rljob_api.spec.products`.
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
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, child_name, metadata
from rljob_operator.settings import Settings

DEVICE_CLASS = "npu.huawei.com"
CLAIM = "devices"
CONNECT_SECONDS = 1800
"""HCCL's ranks wait so long for each other: longer than the slowest pull of an image takes."""

NO_DEVICES = {"huawei.com/skip-ascend-plugin": "enabled"}
"""Ascend's scheduler plugin leaves pods with this annotation alone."""


PLACING = (SP_BLOCK, "huawei.com/")
"""Beginnings of annotations of worker pods that Ascend's scheduler plugin reads, of their PodGroup first."""


def super_pod_annotations(spec: RLJobSpec) -> dict[str, str]:
    """Of a worker pod that is placed in super-pods."""
    block = sp_block(spec)
    return {} if block is None else {SP_BLOCK: str(block)}


def placing_annotations(spec: RLJobSpec) -> dict[str, str]:
    """Of the PodGroup of the job's pods, where Volcano places them."""
    if spec.scheduling.scheduler != "volcano" or not is_ascend(spec.accelerator):
        return {}
    own = (spec.pod_templates.worker or PodTemplate()).annotations
    told = super_pod_annotations(spec) | own
    return {name: value for name, value in told.items() if name.startswith(PLACING)}


def ray_resources(accelerator: Accelerator) -> dict[str, str]:
    """Ray resources of a worker, as KubeRay writes them."""
    return {device_resource(accelerator): str(accelerator.devices_per_node)}


def device_limits(accelerator: Accelerator, settings: Settings) -> dict[str, str]:
    """Extended resources of a worker pod; a resource claim takes their place."""
    by_plugin = is_ascend(accelerator) or settings.emulated_device_plugin
    if not by_plugin or accelerator.injection == "dra":
        return {}
    return {device_resource_name(accelerator): str(accelerator.devices_per_node)}


def device_environment(accelerator: Accelerator) -> list[Manifest]:
    """Variables of HCCL. Which devices are visible is set by the device plugin and by Ray."""
    if not is_ascend(accelerator):
        return []
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    return [
        {"name": "HCCL_IF_IP", "valueFrom": address},
        {"name": "HCCL_IF_BASE_PORT", "value": str(HCCL_PORT)},
        {"name": "HCCL_CONNECT_TIMEOUT", "value": str(CONNECT_SECONDS)},
    ]


def inject(pod: Manifest, accelerator: Accelerator, identity: Identity) -> None:
    """Add to a worker's pod spec what its way of injection needs beside the limit."""
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


def claim_template(accelerator: Accelerator, identity: Identity) -> Manifest:
    """The template of each worker pod's claim on its devices."""
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
