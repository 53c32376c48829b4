"""The gated feed-forwards of all experts of a layer: tokens are sorted by expert, with one product for all.

There is no capacity limit and no token is dropped. The mixture of experts calls this in training and rollout.
"""

# U tokens, H hidden, E experts, K experts of a token, I inner width, X = U * K (token, expert) pairs

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.linear import grouped_linear
from rljob_runtime.devices.kernels.swiglu import swiglu
from rljob_runtime.devices.kernels.token_permutation import permute_tokens, unpermute_tokens
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.router import Routes

RunExperts = Callable[[Tensor, Routes, Tensor, Tensor], Tensor]
"""Takes tokens, their routes and the weights of `StackedExperts`; `run_experts` is the single-device
version."""


class StackedExperts(nn.Module):
    """All experts of a layer in two parameters.

    `gate_up_proj` is [E, 2I, H], gates above ups; `down_proj` is [E, H, I].
    """

    run: RunExperts

    def __init__(self, experts: MoeArchitecture, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.run = run_experts
        count, inner = experts.count, experts.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * inner, hidden, dtype=dtype))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, inner, dtype=dtype))

    def forward(self, x_UH: Tensor, routes: Routes) -> Tensor:
        """Map [U, H] to [U, H] through each token's experts."""
        return self.run(x_UH, routes, self.gate_up_proj, self.down_proj)


def run_experts(x_UH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the weighted sum of each token's experts, [U, H]; weights as in `StackedExperts`."""
    experts_UK = routes.experts_UK
    ends_E = torch.bincount(experts_UK.flatten(), minlength=len(gate_up)).cumsum(0)
    x_XH, position_X = permute_tokens(x_UH, experts_UK)
    output_XH = run_sorted(x_XH, ends_E, gate_up, down)
    return unpermute_tokens(output_XH, position_X, routes.weights_UK)


def run_sorted(x_XH: Tensor, ends_E: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Apply the experts to rows that are sorted by expert, [X, H]. ends_E: where each expert's rows end."""
    inner_XI = swiglu(grouped_linear(x_XH, gate_up, ends_E))
    return grouped_linear(inner_XI, down, ends_E)
