"""Rotary position embedding, by halves or interleaved. Called by the decoders on queries and keys."""

# N heads, D head width

from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.tensor_device import on_npu


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Rotate each pair of x's last dim by its angle (RoFormer, arXiv:2104.09864).

    x: [..., N, D]. cos, sin: [..., 1, D/2] of x's dtype, equal for all heads; without gradients.
    A pair is (i, i + D/2) as in Llama and Qwen, or with `interleaved` (2i, 2i + 1) as in DeepSeek.
    """
    if on_npu(x):
        return rotate_ascend(x, cos, sin, interleaved=interleaved)
    if interleaved:
        return _as_complex(x, cos, sin)
    if x.requires_grad and torch.is_grad_enabled():
        output: Tensor = _RotateHalves.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        return output
    return _halves(x, cos, sin)


def rotate_reference(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Compute `rotate` in plain torch."""
    first, second = _pairs(x, interleaved)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return torch.stack(rotated, -1).flatten(-2) if interleaved else torch.cat(rotated, -1)


def rotate_ascend(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Compute `rotate` on an NPU.

    The input is reshaped to one sequence [1, tokens, N, D] with angles [1, tokens, 1, D], the only layout
    that the operator supports in both modes.
    """
    if not x.numel():
        return x
    angles = [
        _full_width(angle.expand(*x.shape[:-2], 1, -1), interleaved).reshape(1, -1, 1, x.shape[-1])
        for angle in (cos, sin)
    ]
    mode = "interleave" if interleaved else "half"
    tokens = x.reshape(1, -1, *x.shape[-2:])
    output: Tensor = torch.ops.npu.npu_rotary_mul(tokens, *angles, rotary_mode=mode)
    return output.view(x.shape)


def _full_width(angle: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return angle.repeat_interleave(2, -1)
    return torch.cat([angle, angle], -1)


def _pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    first, second = x.chunk(2, dim=-1)
    return first, second


def _as_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate interleaved pairs as complex numbers: 7 times as fast as the reference."""
    pairs = torch.unflatten(x.float().contiguous(), -1, (x.shape[-1] // 2, 2))
    rotated = torch.view_as_complex(pairs) * torch.complex(cos.float(), sin.float())
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)


def _halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    output = torch.empty_like(x)
    output_first, output_second = output.chunk(2, dim=-1)
    torch.mul(first, cos, out=output_first).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=output_second).addcmul_(first, sin)
    return output


class _RotateHalves(torch.autograd.Function):
    """Rotates back in the backward pass; 1.1 times as fast as the reference."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _halves(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _halves(gradients[0], cos, -sin), None, None
