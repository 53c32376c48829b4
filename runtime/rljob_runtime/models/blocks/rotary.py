"""Angles of rotary position embedding, and heads whose rotated pairs are neighbours.

`rotary_embedding` rotates pairs that are the two halves of a head; `halves` reorders neighbours into halves.
`models.rope` defines how fast each pair turns.
"""

# D rotated width

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.rope import axes_of_pairs, inverse_frequencies


def cos_and_sin(
    architecture: Architecture, positions: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotation at these positions, [tokens, D/2] each.

    positions: [tokens], or [tokens, 3] for three axes.
    """
    rope = architecture.rope
    frequencies = inverse_frequencies(architecture.rotated_dim, rope).to(positions.device)
    by_pair = positions[:, None] if positions.ndim == 1 else positions[:, axes_of_pairs(rope)]
    angles = by_pair.float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    if rope.magnitude != 1.0:
        cos, sin = cos * rope.magnitude, sin * rope.magnitude
    return cos.to(dtype), sin.to(dtype)


def halves(x: Tensor) -> Tensor:
    """Reorder neighbours [..., D] into halves: the first of each pair, then the second of each.

    A query's product with a key does not depend on the order of their values.
    """
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
