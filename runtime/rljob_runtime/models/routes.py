"""The experts that each token went to, as bytes: what a rollout keeps of its routers, and an update replays.

Made by the rollout engine, kept in the dock as a column of bytes, read by `packing`. The order of a token's
experts is kept, so that what is replayed adds up as it did.
"""

# U tokens, M layers with experts, K experts of a token

import torch
from torch import Tensor

from rljob_api.model.architecture import BYTE_EXPERTS
from rljob_runtime.models.architecture import Experts


def packed_dtype(experts: Experts) -> torch.dtype:
    """Of an expert's number: 8 bits where they do."""
    return torch.uint8 if experts.count <= BYTE_EXPERTS else torch.int16


def pack_routes(routes_UMK: Tensor) -> bytes:
    """[U, M, K] of `packed_dtype`, token by token."""
    return routes_UMK.cpu().contiguous().numpy().tobytes()


def unpack_routes(routes: Tensor, experts: Experts) -> Tensor:
    """[U, M, K] of `packed_dtype`, of a row's bytes, uint8."""
    values = routes.contiguous().view(packed_dtype(experts))
    return values.view(-1, len(experts.layers), experts.chosen)
