"""Inputs that all layers of one pass share: positions of the tokens, and what they may attend to."""

# B sequences, P longest prompt, L keys in the attention window, D rotated width

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.fused.kept import KVCache, Reach
from rljob_runtime.models.vision.pictured import Pictured


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Full prompts, padded to one width. cos, sin: [B*P, 1, D/2]."""

    rows: int
    width: int
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureInputs:
    """What pictures change in a prefill.

    positions: of three axes, [B*P, 3]. pictured: None if this shard's layers get nothing from the vision
    tower.
    """

    positions: Tensor
    pictured: Pictured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """Inputs for one more token of each sequence.

    cos, sin: [B, 1, D/2]. cache_rows: where each cached head of each token is written, in rows whose heads
    and tokens are flattened into one dim. mask: additive, [B * cached heads, 1, L].
    """

    cos: Tensor
    sin: Tensor
    cache_rows: Tensor
    mask: Tensor
    reach: Reach


def make_decode_step(
    architecture: Architecture,
    reach: Reach,
    rotation: tuple[Tensor, Tensor],
    cache: KVCache,
    dtype: torch.dtype,
) -> DecodeStep:
    """Create the inputs of these tokens' step. rotation: cos and sin of all positions."""
    heads, capacity = architecture.cache_shape[1], cache.rows.shape[4]
    row_index = reach.row_index_B.repeat_interleave(heads)
    count = torch.arange(len(row_index), device=row_index.device)
    return DecodeStep(
        cos=rotation[0].index_select(0, reach.positions_B)[:, None],
        sin=rotation[1].index_select(0, reach.positions_B)[:, None],
        cache_rows=row_index + count * capacity,
        mask=_window_mask(row_index, reach.window, dtype),
        reach=reach,
    )


def _window_mask(row_index: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """Return an additive mask [rows, 1, window]: each row attends to the keys up to its index."""
    hidden = torch.arange(window, device=row_index.device) > row_index[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=row_index.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]
