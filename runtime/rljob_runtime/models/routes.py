"""The experts of each token as bytes: the rollout records its routers' choices, and the update replays them.

The rollout engine packs them, the dock stores them as a column of bytes, and `packing` reads them. The order
of a token's experts is preserved, so that replayed sums are in the same order.
"""

# U tokens, M layers with experts, K experts of a token

import torch
from torch import Tensor

from rljob_api.model.architecture import BYTE_EXPERTS
from rljob_runtime.models.architecture import MoeArchitecture


def packed_dtype(experts: MoeArchitecture) -> torch.dtype:
    """Return the dtype of an expert's number: 8 bits if they are enough."""
    return torch.uint8 if experts.count <= BYTE_EXPERTS else torch.int16


def pack_routes(routes_UMK: Tensor) -> bytes:
    """Return the bytes of [U, M, K] of `packed_dtype`, token by token."""
    return routes_UMK.cpu().contiguous().numpy().tobytes()


def unpack_routes(routes: Tensor, experts: MoeArchitecture) -> Tensor:
    """Return [U, M, K] of `packed_dtype` from a row's bytes, uint8."""
    values = routes.contiguous().view(packed_dtype(experts))
    return values.view(-1, len(experts.layers), experts.chosen)
