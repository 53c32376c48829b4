"""Names of a job's devices among Ray's resources.

The operator's pods offer a resource under this name, and the runtime's device workers request it. Ray counts
the /dev/davinci* of a node as NPU without configuration, including those of emulated devices. So only jobs on
real devices request NPU.
"""

from rljob_api.spec.infrastructure import Accelerator

EMULATED = "rljob_device"
NPU = "NPU"


def device_resource(accelerator: Accelerator) -> str:
    """Return the name of the Ray resource that counts the job's devices."""
    return EMULATED if accelerator.type == "emulated" else NPU
