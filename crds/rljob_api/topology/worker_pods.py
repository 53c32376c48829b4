"""Settings that the operator's worker pods and those of `rljob doctor --probe` have in common."""

from rljob_api.spec.infrastructure import Accelerator

USER = 1000
"""Uid and gid of the runtime's images."""
HOST_GIB = 64
"""Memory per device that a worker pod on Ascend requests, unless the job sets another amount."""
PULL_POLICY = "IfNotPresent"
EMULATED_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
"""Emulated devices run anywhere and request little."""
HCCL_PORT = 20000
"""First port that HCCL's processes use to connect; it is below the system's ephemeral ports."""

NPU_RESOURCE = "huawei.com/npu"
"""Resource name of the device plugin for devices from Ascend 950 on."""
DRIVER_PATHS = {
    "/usr/local/Ascend/driver": "Directory",
    "/usr/local/dcmi": "Directory",
    "/usr/local/bin/npu-smi": "File",
    "/etc/ascend_install.info": "File",
    "/etc/hccn.conf": "File",
}
"""The node's driver and the files that its tools read. The Ascend container runtime mounts less: only `lib64`
and `include` of the driver, and neither file of /etc, which its mount lists may not name."""

_OBJECT_STORE_BYTES = {False: 128 * 2**20, True: 4 * 2**30}


def is_ascend(accelerator: Accelerator) -> bool:
    """Return whether the devices are real ones."""
    return accelerator.type != "emulated"


def device_resource_name(accelerator: Accelerator) -> str:
    """Return the name of the extended resource of the job's devices."""
    named = accelerator.resource_name
    usual = Accelerator.model_fields["resource_name"].default
    return NPU_RESOURCE if accelerator.type == "ascend950" and named == usual else named


def ascend_pod_labels(resource: str | None) -> dict[str, str]:
    """Return the labels by which Ascend's components recognise a pod that requests the resource. A3 products
    use the labels of A2."""
    return {"ring-controller.atlas": "ascend-npu" if resource == NPU_RESOURCE else "ascend-910b"}


def object_store_bytes(*, ascend: bool) -> int:
    """Return the size of Ray's object store in each pod, in /dev/shm. It is small because samples go through
    the dock; by default Ray takes a third of the memory that it sees."""
    return _OBJECT_STORE_BYTES[ascend]
