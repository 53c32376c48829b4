"""The gated feed-forward with gate and up as one matrix, and the mixture of experts."""

# H hidden, I inner width, E experts

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.kernels.swiglu import swiglu
from rljob_runtime.models.architecture import Architecture, Experts
from rljob_runtime.models.blocks.experts import run_experts
from rljob_runtime.models.blocks.router import route
from rljob_runtime.models.fused.step import New


class FusedGatedMlp:
    """inner: I."""

    def __init__(self, hidden: int, inner: int, new: New, *, with_bias: bool) -> None:
        self._inner = inner
        self._gate_up, self._down = new(2 * inner, hidden), new(hidden, inner)
        self._gate_up_bias = new(2 * inner) if with_bias else None
        self._down_bias = new(hidden) if with_bias else None

    def views(self) -> dict[str, Tensor]:
        """The weights by their names within the feed-forward."""
        views = {"down_proj.weight": self._down}
        if self._down_bias is not None:
            views["down_proj.bias"] = self._down_bias
        for kind, tensor in (("weight", self._gate_up), ("bias", self._gate_up_bias)):
            if tensor is not None:
                gate, up = torch.split(tensor, self._inner)
                views |= {f"gate_proj.{kind}": gate, f"up_proj.{kind}": up}
        return views

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, H] -> [tokens, H]."""
        inner = swiglu(F.linear(x, self._gate_up, self._gate_up_bias))
        return F.linear(inner, self._down, self._down_bias)


class FusedExperts:
    """Router, experts and the shared one where there is one."""

    def __init__(self, architecture: Architecture, experts: Experts, new: New) -> None:
        hidden, inner = architecture.hidden_size, experts.intermediate_size
        self._experts = experts
        self._router = new(experts.count, hidden)
        self._bias = new(experts.count).float() if experts.correction_bias else None
        self._gate_up = new(experts.count, 2 * inner, hidden)
        self._down = new(experts.count, hidden, inner)
        width, bias = experts.shared_intermediate, architecture.mlp_bias
        self._shared = FusedGatedMlp(hidden, width, new, with_bias=bias) if width else None

    def views(self) -> dict[str, Tensor]:
        """The weights by their names within the feed-forward; experts in stacks."""
        views = {
            "gate.weight": self._router,
            "experts.gate_up_proj": self._gate_up,
            "experts.down_proj": self._down,
        }
        if self._bias is not None:
            views["gate.e_score_correction_bias"] = self._bias
        if self._shared is not None:
            shared = self._shared.views().items()
            views |= {f"shared_experts.{name}": view for name, view in shared}
        return views

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, H] -> [tokens, H]."""
        routes = route(x, self._router, self._bias, self._experts)
        output = run_experts(x, routes, self._gate_up, self._down)
        return output if self._shared is None else output + self._shared(x)


def make_feed_forward(
    architecture: Architecture, layer: int, new: New
) -> FusedGatedMlp | FusedExperts:
    """The feed-forward of this layer."""
    a, experts = architecture, architecture.experts_in(layer)
    if experts is not None:
        return FusedExperts(a, experts, new)
    return FusedGatedMlp(a.hidden_size, a.intermediate_size, new, with_bias=a.mlp_bias)
