"""What all layers of one pass share: where the tokens stand, and what they may see."""

# B sequences, P longest prompt, L keys in the attention window, D rotated width

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.fused.kept import Kept, Reach
from rljob_runtime.models.vision.pictured import Pictured


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Prompts padded to one width, all their tokens at once. cos, sin: [B*P, 1, D/2]."""

    rows: int
    width: int
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What pictures change in a prefill. positions: of three axes, [B*P, 3]. pictured: None where the layers
    here get nothing of the tower's."""

    positions: Tensor
    pictured: Pictured | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One more token of each sequence.

    cos, sin: [B, 1, D/2]. places: where each kept head of each token goes, in rows with their heads and
    tokens in one dim. mask: additive, [B * kept heads, 1, L].
    """

    cos: Tensor
    sin: Tensor
    places: Tensor
    mask: Tensor
    reach: Reach


def make_step(
    architecture: Architecture,
    reach: Reach,
    rotation: tuple[Tensor, Tensor],
    kept: Kept,
    dtype: torch.dtype,
) -> Step:
    """The step of these tokens. rotation: cos and sin of all positions."""
    heads, capacity = architecture.kept_shape[1], kept.rows.shape[4]
    places = reach.places_B.repeat_interleave(heads)
    count = torch.arange(len(places), device=places.device)
    return Step(
        cos=rotation[0].index_select(0, reach.positions_B)[:, None],
        sin=rotation[1].index_select(0, reach.positions_B)[:, None],
        places=places + count * capacity,
        mask=_window_mask(places, reach.window, dtype),
        reach=reach,
    )


def _window_mask(places: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, window]: each row sees the keys up to its place."""
    hidden = torch.arange(window, device=places.device) > places[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=places.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]
