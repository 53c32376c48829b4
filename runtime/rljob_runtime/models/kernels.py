"""Elementwise parts of a decoder with hand-written gradients, to pass over memory fewer times."""

# D head width

from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) * weight over the last dim, normalised in float32.

    weight: [last dim]; without gradients also one a head, [heads, last dim].
    """
    if torch.is_grad_enabled():
        output: Tensor = _RmsNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return output
    return _normalised(x, epsilon)[0].to(x.dtype) * weight


def _normalised(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    wide = x.float()
    scale = torch.linalg.vecdot(wide, wide)[..., None].div_(x.shape[-1]).add_(epsilon).rsqrt_()
    return wide * scale, scale


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        normed, scale = _normalised(x, epsilon)
        ctx.save_for_backward(normed, scale, weight)
        return normed.to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        normed, scale, weight = ctx.saved_tensors
        gradient = gradients[0].float()
        weight_gradient = (gradient * normed).flatten(0, -2).sum(0)
        gradient = gradient * weight
        inner = torch.linalg.vecdot(gradient, normed)[..., None].div_(-normed.shape[-1])
        x_gradient = torch.addcmul(gradient, normed, inner).mul_(scale)
        return x_gradient.to(gradients[0].dtype), weight_gradient.to(weight.dtype), None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding with halves as pairs: x [tokens, heads, D], cos and sin [tokens, 1, D/2]."""
    output: Tensor = _Rotate.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    return output


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotated(gradients[0], cos, -sin), None, None


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` without a gradient; a negative sin turns it back."""
    first, second = x.chunk(2, dim=-1)
    output = torch.empty_like(x)
    output_first, output_second = output.chunk(2, dim=-1)
    torch.mul(first, cos, out=output_first).addcmul_(second, sin, value=-1.0)
    torch.mul(second, cos, out=output_second).addcmul_(first, sin)
    return output
