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

ASCEND_POD_LABELS = {"ring-controller.atlas": "ascend-910b"}
"""By this Ascend's components know a pod of theirs; A3 products have it too."""
DRIVER_PATHS = {
    "/usr/local/Ascend/driver": "Directory",
    "/usr/local/dcmi": "Directory",
    "/usr/local/bin/npu-smi": "File",
    "/etc/ascend_install.info": "File",
    "/etc/hccn.conf": "File",
}
"""What the Ascend container runtime would mount into a pod."""

_OBJECT_STORE_BYTES = {False: 128 * 2**20, True: 4 * 2**30}


def is_ascend(accelerator: Accelerator) -> bool:
    """Whether the devices are real ones."""
    return accelerator.type != "emulated"


def object_store_bytes(*, ascend: bool) -> int:
    """Of Ray's object store in each pod, in /dev/shm. Samples go through the dock, so it stays small; Ray
    would otherwise take a third of the memory it sees."""
    return _OBJECT_STORE_BYTES[ascend]
