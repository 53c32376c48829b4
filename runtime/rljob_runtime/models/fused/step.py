"""What all layers of one pass share: where the tokens stand, and what they may see."""

# B sequences, P longest prompt, L keys in the attention window, D rotated width

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prompts padded to one width, all their tokens at once. cos, sin: [B*P, 1, D/2]."""

    rows: int
    width: int
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One more token of each sequence.

    cos, sin: [B, 1, D/2]. places: where each kept head of each token goes, in a cache with its rows,
    heads and positions in one dim. mask: additive, [B * kept heads, 1, L]. window: L.
    """

    rows: int
    cos: Tensor
    sin: Tensor
    places: Tensor
    mask: Tensor
    window: int


def make_step(
    architecture: Architecture,
    positions_B: Tensor,
    rotation: tuple[Tensor, Tensor],
    cache: Tensor,
    window: int,
    dtype: torch.dtype,
) -> Step:
    """The step of tokens at these positions. rotation: cos and sin of all positions.

    cache: [layers, tensors, at least B, heads, at least L, width].
    """
    heads, capacity = architecture.kept_shape[1], cache.shape[4]
    positions = positions_B.repeat_interleave(heads)
    count = torch.arange(len(positions), device=positions.device)
    return Step(
        rows=len(positions_B),
        cos=rotation[0].index_select(0, positions_B)[:, None],
        sin=rotation[1].index_select(0, positions_B)[:, None],
        places=positions + count * capacity,
        mask=_window_mask(positions, window, dtype),
        window=window,
    )


def _window_mask(positions: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, window]: each row sees the keys up to its position."""
    hidden = torch.arange(window, device=positions.device) > positions[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]
