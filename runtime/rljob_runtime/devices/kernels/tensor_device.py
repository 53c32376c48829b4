"""On which device an operation's tensors are. Called by all kernels."""

from torch import Tensor


def on_npu(tensor: Tensor) -> bool:
    """Whether the tensor is on an Ascend NPU.

    CPU is told apart first: a device's name takes 1 µs, as long as a small kernel's other overhead.
    """
    return not tensor.is_cpu and tensor.device.type == "npu"
