"""Multiplication by a matrix without gradients. Called by the decoders that generate."""

# U tokens, I input features, O output features

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_READ_BOUND_TOKENS = 2
"""Up to this many tokens, reading the matrix dominates, and torch's own product is as fast."""
MIN_PRODUCTS = 2**20
"""With fewer multiplications, oneDNN's start takes longer than it saves."""
HUGE_ITEMS = 2**24
"""Size of a matrix that oneDNN also reads faster."""
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def product(x_UI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, [U, I] -> [U, O].

    float32 on CPU uses oneDNN where that is faster: torch uses MKL, which reaches less than half of the speed
    on processors that are not Intel's.
    """
    if not _pays(x_UI, weight_OI):
        return F.linear(x_UI, weight_OI, bias_O)
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x_UI, weight_OI, bias_O, "none", [], "")
    return output


def _pays(x_UI: Tensor, weight_OI: Tensor) -> bool:
    if not (x_UI.is_cpu and x_UI.dtype == torch.float32) or torch.is_grad_enabled():
        return False
    tokens, items = x_UI.shape[0], weight_OI.numel()
    enough = tokens > MAX_READ_BOUND_TOKENS or items >= HUGE_ITEMS
    return enough and tokens * items >= MIN_PRODUCTS and ONEDNN
