"""What a job's devices are called among Ray's resources.

The operator's pods offer a resource under this name, and the runtime's device workers ask for it. Ray
counts the /dev/davinci* of a node as NPU by itself, those of emulated devices too: only jobs on real
devices ask for NPU.
"""

from rljob_api.spec.infrastructure import Accelerator

EMULATED = "rljob_device"
NPU = "NPU"


def device_resource(accelerator: Accelerator) -> str:
    """The Ray resource of which each device of the job is one."""
    return EMULATED if accelerator.type == "emulated" else NPU
