"""Angles of rotary position embedding, and heads whose pairs are neighbours.

The pairs that turn are the two halves of a head (`rotary_embedding`); `halves` makes them of neighbours.
How fast each pair turns is `models.rope`.
"""

# D rotated width

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.rope import axes_of_pairs, inverse_frequencies


def cos_and_sin(
    architecture: Architecture, positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """What turns tokens at these positions, [tokens], or of three axes [tokens, 3]: cos and sin,
    [tokens, D/2] each."""
    rope = architecture.rope
    frequencies = inverse_frequencies(architecture.rotated_dim, rope).to(positions.device)
    by_pair = positions[:, None] if positions.ndim == 1 else positions[:, axes_of_pairs(rope)]
    angles = by_pair.float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    if rope.magnitude != 1.0:
        cos, sin = cos * rope.magnitude, sin * rope.magnitude
    return cos.to(dtype), sin.to(dtype)


def halves(x: Tensor) -> Tensor:
    """Neighbours [..., D] as halves: the first of each pair, then the second of each.

    A query's product with a key does not depend on the order of their values.
    """
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
