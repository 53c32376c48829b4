"""Rotary position embedding of heads, with a hand-written gradient.

The pairs that turn are the two halves of a head; `halves` makes them of neighbours. How fast each
pair turns is `models.rope`.
"""

# D rotated width

from typing import Any

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.rope import inverse_frequencies


def cos_and_sin(
    architecture: Architecture, positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What turns tokens at these positions [tokens]: cos and sin, [tokens, D/2] each."""
    rope = architecture.rope
    frequencies = inverse_frequencies(architecture.rotated_dim, rope).to(positions.device)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    if rope.magnitude != 1.0:
        cos, sin = cos * rope.magnitude, sin * rope.magnitude
    return cos.to(dtype), sin.to(dtype)


def halves(x: Tensor) -> Tensor:
    """Neighbours [..., D] as halves: the first of each pair, then the second of each.

    A query's product with a key does not depend on the order of their values.
    """
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)


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
