"""The gated feed-forwards of all experts of a layer: tokens sorted by expert, one product for all.

No capacity and no dropped tokens. Called by the mixture of experts in training and in the rollout.
"""

# U tokens, H hidden, E experts, K experts of a token, I inner width, X = U * K (token, expert) pairs

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.models.architecture import Experts
from rljob_runtime.models.blocks.router import Routes

# What torch's grouped product takes, by device, and what the bytes of its rows are a multiple of.
GROUPED_TYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16,)}
ALIGNED_BYTES = 16


class StackedExperts(nn.Module):
    """`gate_up_proj` [E, 2I, H], gates above ups, and `down_proj` [E, H, I]."""

    def __init__(self, experts: Experts, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        count, inner = experts.count, experts.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner, dtype=dtype))

    def forward(self, x_UH: Tensor, routes: Routes) -> Tensor:
        """[U, H] -> [U, H]."""
        return run_experts(x_UH, routes, self.gate_up_proj, self.down_proj)


def run_experts(x_UH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each token's experts, weighted and added up, [U, H]; weights as in `StackedExperts`."""
    num_chosen = routes.experts_UK.shape[1]
    expert_X = routes.experts_UK.flatten()
    order_X = expert_X.argsort(stable=True)
    ends_E = torch.bincount(expert_X, minlength=len(gate_up)).cumsum(0)
    x_XH = x_UH.index_select(0, order_X // num_chosen)
    gate_XI, up_XI = _product(x_XH, gate_up, ends_E).chunk(2, dim=-1)
    output_XH = _product(F.silu(gate_XI) * up_XI, down, ends_E)
    place_X = torch.empty_like(order_X)
    place_X[order_X] = torch.arange(len(order_X), device=order_X.device)
    output_UKH = output_XH.index_select(0, place_X).view(len(x_UH), num_chosen, -1)
    weights_UK1 = routes.weights_UK[..., None]
    return (output_UKH * weights_UK1).sum(1).to(x_UH.dtype)


def _product(x_XJ: Tensor, weight_EOJ: Tensor, ends_E: Tensor) -> Tensor:
    """Rows of x times the transposed matrix of the expert that they belong to, [X, O].

    x_XJ: sorted by expert. ends_E: index behind the last row of each.
    """
    if _fits_grouped(x_XJ, weight_EOJ):
        product: Tensor = F.grouped_mm(
            x_XJ, weight_EOJ.transpose(1, 2), offs=ends_E.to(torch.int32)
        )
        return product
    sizes = ends_E.diff(prepend=ends_E.new_zeros(1)).tolist()
    parts = zip(torch.split(x_XJ, sizes), weight_EOJ, strict=True)
    return torch.cat([F.linear(x, weight) for x, weight in parts])


def _fits_grouped(x_XJ: Tensor, weight_EOJ: Tensor) -> bool:
    """Whether torch has one product for all experts on this device, of this type and these widths."""
    if x_XJ.dtype not in GROUPED_TYPES.get(x_XJ.device.type, ()):
        return False
    widths = weight_EOJ.shape[1:]
    return all(width * x_XJ.element_size() % ALIGNED_BYTES == 0 for width in widths)
