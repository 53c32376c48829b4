"""What the operator's worker pods and a probe's (`rljob doctor --probe`) have in common."""

from rljob_api.spec.infrastructure import Accelerator

USER = 1000
"""Uid and gid of the runtime's images."""
HOST_GIB = 64
"""Memory that a worker pod on Ascend asks for, a device, where the job does not say another amount."""
PULL_POLICY = "IfNotPresent"
EMULATED_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
"""Emulated devices run anywhere and ask for little."""
HCCL_PORT = 20000
"""First of the ports by which HCCL's processes find each other; below those the system hands out."""

NPU_RESOURCE = "huawei.com/npu"
"""What the device plugin calls devices from Ascend 950 on."""
DRIVER_PATHS = {
    "/usr/local/Ascend/driver": "Directory",
    "/usr/local/dcmi": "Directory",
    "/usr/local/bin/npu-smi": "File",
    "/etc/ascend_install.info": "File",
    "/etc/hccn.conf": "File",
}
"""The node's driver and the files that its tools read. The Ascend container runtime mounts less: of the
driver `lib64` and `include`, and neither file of /etc, which no list of its may name."""

_OBJECT_STORE_BYTES = {False: 128 * 2**20, True: 4 * 2**30}


def is_ascend(accelerator: Accelerator) -> bool:
    """Whether the devices are real ones."""
    return accelerator.type != "emulated"


def device_resource_name(accelerator: Accelerator) -> str:
    """Extended resource of the job's devices."""
    named = accelerator.resource_name
    usual = Accelerator.model_fields["resource_name"].default
    return NPU_RESOURCE if accelerator.type == "ascend950" and named == usual else named


def ascend_pod_labels(resource: str | None) -> dict[str, str]:
    """By them Ascend's components know a pod of theirs that asks for the resource; A3 products' are A2's."""
    return {"ring-controller.atlas": "ascend-npu" if resource == NPU_RESOURCE else "ascend-910b"}


def object_store_bytes(*, ascend: bool) -> int:
    """Of Ray's object store in each pod, in /dev/shm. Samples go through the dock, so it stays small; Ray
    would otherwise take a third of the memory it sees."""
    return _OBJECT_STORE_BYTES[ascend]
