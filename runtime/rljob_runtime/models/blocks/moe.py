"""Mixture of experts: a router, experts and, in some families, one expert shared by all tokens."""

# U tokens, H hidden, K experts of a token

import torch
from torch import Tensor, nn

from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.experts import StackedExperts
from rljob_runtime.models.blocks.gated_mlp import GatedMlp
from rljob_runtime.models.blocks.router import Router
from rljob_runtime.models.blocks.router_load import RouterLoad


class MixtureOfExperts(nn.Module):
    """Feed-forward that sends each token to a few experts. with_bias: whether the shared expert has a
    bias."""

    shared_experts: GatedMlp | None

    def __init__(
        self, experts: MoeArchitecture, hidden: int, dtype: torch.dtype, *, with_bias: bool
    ) -> None:
        super().__init__()
        self.gate = Router(experts, hidden, dtype)
        self.experts = StackedExperts(experts, hidden, dtype)
        inner = experts.shared_intermediate
        self.shared_experts = GatedMlp(hidden, inner, dtype, with_bias=with_bias) if inner else None

    def forward(
        self, x_UH: Tensor, load: RouterLoad | None, replayed_UK: Tensor | None = None
    ) -> Tensor:
        """Map [U, H] to [U, H] and add the tokens' routes to `load`, unless they are counted already.

        replayed_UK: experts that the tokens go to; None: the router chooses.
        """
        routes = self.gate(x_UH, replayed_UK)
        if load is not None:
            load.add(routes)
        output_UH: Tensor = self.experts(x_UH, routes)
        return output_UH if self.shared_experts is None else output_UH + self.shared_experts(x_UH)
