"""SwiGLU of a matrix product that contains gate and up side by side. Called by the feed-forwards."""

# I inner width

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.tensor_device import on_npu


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, [..., 2·I] -> [..., I]; the gate is the first half (arXiv:2002.05202).

    The reference is the portable form: a hand-written gradient took 1.1 times as long.
    """
    if on_npu(gate_up):
        return swiglu_ascend(gate_up)
    return swiglu_reference(gate_up)


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """Compute `swiglu` in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_ascend(gate_up: Tensor) -> Tensor:
    """Compute `swiglu` on an NPU."""
    output: Tensor = torch.ops.npu.npu_swiglu(gate_up, dim=-1)
    return output
