"""The gated feed-forwards of all experts of a layer: tokens sorted by expert, one product for all.

No capacity and no dropped tokens. Called by the mixture of experts in training and in the rollout.
"""

# U tokens, H hidden, E experts, K experts of a token, I inner width, X = U * K (token, expert) pairs

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.linear import grouped_linear
from rljob_runtime.devices.kernels.swiglu import swiglu
from rljob_runtime.devices.kernels.token_permutation import permute_tokens, unpermute_tokens
from rljob_runtime.models.architecture import Experts
from rljob_runtime.models.blocks.router import Routes

RunExperts = Callable[[Tensor, Routes, Tensor, Tensor], Tensor]
"""Tokens, their routes, and the weights of `StackedExperts`; the form of one device is `run_experts`."""


class StackedExperts(nn.Module):
    """`gate_up_proj` [E, 2I, H], gates above ups, and `down_proj` [E, H, I]."""

    run: RunExperts

    def __init__(self, experts: Experts, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.run = run_experts
        count, inner = experts.count, experts.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner, dtype=dtype))

    def forward(self, x_UH: Tensor, routes: Routes) -> Tensor:
        """[U, H] -> [U, H]."""
        return self.run(x_UH, routes, self.gate_up_proj, self.down_proj)


def run_experts(x_UH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each token's experts, weighted and added up, [U, H]; weights as in `StackedExperts`."""
    experts_UK = routes.experts_UK
    ends_E = torch.bincount(experts_UK.flatten(), minlength=len(gate_up)).cumsum(0)
    x_XH, place_X = permute_tokens(x_UH, experts_UK)
    output_XH = run_sorted(x_XH, ends_E, gate_up, down)
    return unpermute_tokens(output_XH, place_X, routes.weights_UK)


def run_sorted(x_XH: Tensor, ends_E: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The experts on rows that are sorted by expert, [X, H]. ends_E: where each expert's rows end."""
    inner_XI = swiglu(grouped_linear(x_XH, gate_up, ends_E))
    return grouped_linear(inner_XI, down, ends_E)
