"""The gated feed-forward with gate and up as one matrix, and the mixture of experts.

`fused_decoder` calls this. Inner widths and experts are those of the model shard that is computed.
"""

# U tokens, H hidden, I inner width, E experts, K experts of a token, X (token, expert) pairs

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.kernels.swiglu import swiglu
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.experts import run_experts, run_sorted
from rljob_runtime.models.blocks.router import Routes, route
from rljob_runtime.models.fused.fused_weights import WeightFactory, Weights, split_rows, wide
from rljob_runtime.models.fused.part import Joins, ModelShard
from rljob_runtime.models.routes import packed_dtype


class FusedGatedMlp:
    """The gated feed-forward of a model shard. inner: I."""

    def __init__(
        self, hidden: int, inner: int, joins: Joins, new: WeightFactory, *, with_bias: bool
    ) -> None:
        self._inner, self._joins = inner, joins
        self._gate_up = new.matrix(2 * inner, hidden)
        self._down = new.matrix(hidden, inner, widest=joins.widest)
        self._gate_up_bias = new(2 * inner) if with_bias else None
        self._down_bias = new(hidden) if with_bias else None

    def views(self) -> dict[str, Weights]:
        """Return the weights by their names within the feed-forward."""
        views: dict[str, Weights] = {"down_proj.weight": self._down}
        if self._down_bias is not None:
            views["down_proj.bias"] = self._down_bias
        for kind, tensor in (("weight", self._gate_up), ("bias", self._gate_up_bias)):
            if tensor is not None:
                gate, up = split_rows(tensor, [self._inner] * 2)
                views |= {f"gate_proj.{kind}": gate, f"up_proj.{kind}": up}
        return views

    def __call__(self, x: Tensor) -> Tensor:
        """Map [tokens, H] to [tokens, H]."""
        inner = swiglu(product(x, wide(self._gate_up, x.dtype), self._gate_up_bias))
        return self._joins.rows(inner, wide(self._down, x.dtype), self._down_bias)


class FusedExperts:
    """Router, experts and, where a family has one, the shared expert.

    log: collects the experts of a pass's tokens, [U, K] of `packed_dtype`; None if routes are not requested.
    """

    log: list[Tensor] | None = None

    def __init__(
        self, shard: ModelShard, experts: MoeArchitecture, joins: Joins, new: WeightFactory
    ) -> None:
        hidden, inner = shard.sizes.hidden_size, experts.intermediate_size
        self._experts, self._local_experts, self._joins = experts, shard.experts, joins
        self._router = new(experts.count, hidden)
        self._bias = new(experts.count).float() if experts.correction_bias else None
        self._gate_up = new.matrix(len(shard.experts), 2 * inner, hidden)
        by_features = len(shard.experts) == experts.count
        self._down = new.matrix(
            len(shard.experts), hidden, inner, widest=joins.widest if by_features else None
        )
        width, bias = experts.shared_intermediate, shard.sizes.mlp_bias
        self._shared = FusedGatedMlp(hidden, width, joins, new, with_bias=bias) if width else None

    def views(self) -> dict[str, Weights]:
        """Return the weights by their names within the feed-forward; experts in stacks."""
        views: dict[str, Weights] = {
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
        """Map [tokens, H] to [tokens, H]."""
        output = self._routed(x)
        return output if self._shared is None else output + self._shared(x)

    def idle(self) -> None:
        """Compute other shards' tokens, with no local tokens."""
        self._routed(self._router.new_empty(0, self._router.shape[1]))

    def _routed(self, x: Tensor) -> Tensor:
        x = self._joins.to_experts(x)
        routes = route(x, self._router, self._bias, self._experts)
        if self.log is not None:
            experts_UK = self._joins.local_tokens(routes.experts_UK)
            self.log.append(experts_UK.to(packed_dtype(self._experts)))
        weights = wide(self._gate_up, x.dtype), wide(self._down, x.dtype)
        if len(self._local_experts) == self._experts.count:
            return self._joins.from_experts(run_experts(x, routes, *weights))
        return self._joins.from_experts(run_local_experts(x, routes, *weights, self._local_experts))


def run_local_experts(
    x_UH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor, local_experts: range
) -> Tensor:
    """Return the weighted sum over each token's local experts, [U, H].

    gate_up, down: as in `StackedExperts`, of the local experts alone. Waits for the device, since the number
    of (token, expert) pairs must be known.
    """
    index_X = routes.experts_UK.flatten() - local_experts.start
    local_X = ((index_X >= 0) & (index_X < len(local_experts))).nonzero()[:, 0]
    local_X = local_X[index_X[local_X].argsort(stable=True)]
    ends_E = torch.bincount(index_X[local_X], minlength=len(local_experts)).cumsum(0)
    chosen = routes.weights_UK.shape[1]
    output_XH = run_sorted(x_UH.index_select(0, local_X // chosen), ends_E, gate_up, down)
    copies_XH = x_UH.new_zeros(len(index_X), x_UH.shape[1]).index_copy_(0, local_X, output_XH)
    weights_U1K = routes.weights_UK.to(x_UH.dtype)[:, None]
    return torch.bmm(weights_U1K, copies_XH.view(-1, chosen, x_UH.shape[1]))[:, 0]


def make_feed_forward(
    shard: ModelShard, layer: int, joins: Joins, new: WeightFactory
) -> FusedGatedMlp | FusedExperts:
    """Create the feed-forward of this layer."""
    a, experts = shard.sizes, shard.sizes.experts_in(layer)
    if experts is not None:
        return FusedExperts(shard, experts, joins, new)
    return FusedGatedMlp(a.hidden_size, a.intermediate_size, joins, new, with_bias=a.mlp_bias)
