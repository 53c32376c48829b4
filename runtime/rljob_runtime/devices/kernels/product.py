"""The product with a matrix, without gradients. Called by the decoders that generate."""

# U tokens, I input features, O output features

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_BOUND_BY_READING = 2
"""Up to so many tokens the time is that of reading the matrix, in which torch's own product is as fast."""
FEWEST_PRODUCTS = 2**20
"""Below so many products of two numbers, oneDNN takes longer to begin than it saves."""
HUGE_ITEMS = 2**24
"""Of a matrix that oneDNN reads faster too."""
ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


def product(x_UI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, [U, I] -> [U, O].

    float32 on a processor goes to oneDNN where that pays: torch asks MKL, which on processors other than
    Intel's leaves half of the speed and more unused.
    """
    if not _pays(x_UI, weight_OI):
        return F.linear(x_UI, weight_OI, bias_O)
    output: Tensor = torch.ops.mkldnn._linear_pointwise(x_UI, weight_OI, bias_O, "none", [], "")
    return output


def _pays(x_UI: Tensor, weight_OI: Tensor) -> bool:
    if not (x_UI.is_cpu and x_UI.dtype == torch.float32) or torch.is_grad_enabled():
        return False
    tokens, items = x_UI.shape[0], weight_OI.numel()
    enough = tokens > MOST_BOUND_BY_READING or items >= HUGE_ITEMS
    return enough and tokens * items >= FEWEST_PRODUCTS and ONEDNN
