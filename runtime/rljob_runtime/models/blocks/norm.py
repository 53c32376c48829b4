"""Root-mean-square norm, with a hand-written gradient to pass over memory fewer times."""

from typing import Any

import torch
from torch import Tensor, nn


class Norm(nn.Module):
    """Root-mean-square norm over the last dim."""

    def __init__(self, width: int, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as x."""
        return rms_norm(x, self.weight, self.epsilon)


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
