"""SwiGLU of a matrix product that holds gate and up side by side. Called by the feed-forwards."""

# I inner width

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, [..., 2·I] -> [..., I]; the gate is the first half (arXiv:2002.05202)."""
    if gate_up.device.type == "npu":
        return swiglu_ascend(gate_up)
    if gate_up.requires_grad and torch.is_grad_enabled():
        output: Tensor = _SwiGlu.apply(gate_up)  # type: ignore[no-untyped-call]
        return output
    return swiglu_reference(gate_up)


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """`swiglu` in plain torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_ascend(gate_up: Tensor) -> Tensor:
    """`swiglu` on an NPU."""
    output: Tensor = torch.ops.npu.npu_swiglu(gate_up, dim=-1)
    return output


class _SwiGlu(torch.autograd.Function):
    """Keeps its input alone for the gradient, where autograd's chain keeps silu(gate) too."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return swiglu_reference(gate_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        gradient = torch.empty_like(gate_up)
        gate_gradient, up_gradient = gradient.chunk(2, dim=-1)
        torch.mul(gradients[0], F.silu(gate), out=up_gradient)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=gate_gradient)
        return gradient
