"""A Megatron Core layer in place of a decoder's layer, with this project's norms, attention, SwiGLU and
products of experts.

`attention` replaces Megatron's attention in it, `experts` its experts; `model` inserts layers into a decoder.
"""

# U packed tokens of this context rank, S of one tensor rank, H hidden, E experts, K experts of a token

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.swiglu import swiglu
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.latent_attention import LATENT_EPSILON
from rljob_runtime.models.blocks.packed_attention import Attend
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing
from rljob_runtime.models.recompute import checkpointed_with_counter
from rljob_runtime.update.update_megatron.attention import (
    CoreHeads,
    CoreLatent,
    PassContext,
    WholeMatrix,
    with_attention,
)
from rljob_runtime.update.update_megatron.core import Core
from rljob_runtime.update.update_megatron.experts import CoreExperts


@dataclass(slots=True, kw_only=True)
class RouteCounter:
    """Adds a router's choices to a load while a layer computes. load: None: do not count."""

    sigmoid: bool
    load: RouterLoad | None = None

    def count(
        self, router: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
    ) -> None:
        """Count as a forward hook of Megatron's router: [S, 1, H] → weights and choices, [S, E] each."""
        weights_SE, chosen_SE = outputs[:2]
        experts_SK = chosen_SE.nonzero()[:, 1].view(len(chosen_SE), -1)
        logits_SE = router.gating(inputs[0]).float().flatten(0, -2)  # type: ignore[operator]
        scores_SE = logits_SE.sigmoid() if self.sigmoid else logits_SE.softmax(-1)
        routes = Routes(
            experts_UK=experts_SK,
            weights_UK=weights_SE.gather(1, experts_SK),
            probabilities_UE=scores_SE / scores_SE.sum(-1, keepdim=True)
            if self.sigmoid
            else scores_SE,
        )
        if self.load is not None:  # always computed, so that a recomputed layer does the same twice
            self.load.add(routes)


class CoreLayer(nn.Module):
    """A decoder's layer. config: Megatron's. recompute: keep only the input for the backward pass."""

    def __init__(
        self,
        core: Core,
        config: object,
        architecture: Architecture,
        index: int,
        *,
        attend: Attend,
        recompute: bool,
    ) -> None:
        super().__init__()
        self._recompute = recompute
        self._context = PassContext(core=core, architecture=architecture, attend=attend)
        self._dispatcher: Any = None
        experts = architecture.experts_in(index)
        self._counter = RouteCounter(sigmoid=experts is not None and experts.scores == "sigmoid")
        spec = core.get_gpt_layer_local_spec(
            num_experts=experts.count if experts else None,
            moe_grouped_gemm=False,
            qk_layernorm=architecture.qk_norm or architecture.latent is not None,
            multi_latent_attention=architecture.latent is not None,
            normalization="RMSNorm",
        )
        submodules = spec.submodules  # type: ignore[attr-defined]
        submodules.input_layernorm = submodules.pre_mlp_layernorm = CoreNorm
        self._replace_attention(submodules.self_attention)
        if experts is not None:
            submodules.mlp.submodules.experts = CoreExperts
        self.of_core = core.TransformerLayer(
            config=config, submodules=submodules, layer_number=index + 1
        )
        if architecture.latent is not None:
            _repeat_narrow(self.of_core.self_attention, config)  # type: ignore[arg-type]
        _fuse(self.of_core.mlp)  # type: ignore[arg-type]
        if experts is not None:
            self.of_core.mlp.router.register_forward_hook(self._counter.count)  # type: ignore
            self._dispatcher = self.of_core.mlp.token_dispatcher  # type: ignore[union-attr]

    def forward(
        self,
        hidden_SH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        """Map [S, H] to [S, H]."""
        if not self._recompute:
            return self._run(hidden_SH, packing, rotation, load)
        return checkpointed_with_counter(self._run, hidden_SH, packing, rotation, counter=load)

    def _run(
        self,
        hidden_SH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        context, counter = self._context, self._counter
        context.packing, context.rotation, counter.load = packing, rotation, load
        try:
            output: Tensor = self.of_core(hidden_states=hidden_SH[:, None], attention_mask=None)[0]
            return output[:, 0]
        finally:  # a recomputed layer ends with an exception once all needed values exist
            context.packing = context.rotation = counter.load = None
            if self._dispatcher is not None:  # would keep all inputs of its weights alive
                self._dispatcher.probs = None

    def _replace_attention(self, spec: object) -> None:
        latent = self._context.architecture.latent is not None
        submodules = spec.submodules  # type: ignore[attr-defined]
        submodules.core_attention = nn.Identity
        spec.module = with_attention(  # type: ignore[attr-defined]
            CoreLatent if latent else CoreHeads,
            spec.module,  # type: ignore[attr-defined]
            self._context,
        )
        if latent:
            submodules.q_layernorm = submodules.kv_layernorm = LatentNorm
        elif self._context.architecture.qk_norm:
            submodules.q_layernorm = submodules.k_layernorm = CoreNorm


class CoreNorm(nn.Module):
    """Root-mean-square norm in the form of Megatron's norms.

    If tensor ranks share the tokens, Megatron sums the gradients that each computed.
    """

    def __init__(
        self, config: object, hidden_size: int, eps: float = 1e-5, **others: object
    ) -> None:
        super().__init__()
        dtype: torch.dtype = config.params_dtype  # type: ignore[attr-defined]
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=dtype))
        shared = config.sequence_parallel  # type: ignore[attr-defined]
        self.weight.sequence_parallel = shared  # type: ignore[attr-defined]
        self.epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized, in its shape and dtype."""
        return rms_norm(x, self.weight, self.epsilon)


class LatentNorm(CoreNorm):
    """Root-mean-square norm of compressed vectors."""

    def __init__(self, config: object, hidden_size: int, **others: object) -> None:
        super().__init__(config, hidden_size, eps=LATENT_EPSILON)


class CoreFeedForward:
    """Overrides the forward pass of Megatron's feed-forward class, whose matrices it uses.

    Gate and up enter this project's fused operation; Megatron uses three of torch's, and its own fused one on
    GPUs only.
    """

    linear_fc1: Any
    linear_fc2: Any

    def forward(self, hidden_states: Tensor, *others: None, **more: None) -> tuple[Tensor, None]:
        """Map [S, 1, H] to [S, 1, H], without a bias."""
        output: tuple[Tensor, None] = self.linear_fc2(swiglu(self.linear_fc1(hidden_states)[0]))
        return output


def _fuse(feed_forward: nn.Module) -> None:
    """Change the class of a layer's feed-forward, or of the shared expert next to its experts.

    Megatron checks the class while it builds the layer, so the class is changed afterwards.
    """
    if not hasattr(feed_forward, "router"):
        feed_forward.__class__ = type("CoreFeedForward", (CoreFeedForward, type(feed_forward)), {})
    elif (shared := getattr(feed_forward, "shared_experts", None)) is not None:
        plain = type("CoreFeedForward", (CoreFeedForward, type(shared).__mro__[1]), {})
        shared.__class__ = type("CoreSharedExpert", (type(shared), plain), {})


def _repeat_narrow(attention: nn.Module, config: object) -> None:
    """Give each tensor rank the full matrices that compute narrow vectors, which Megatron would split."""
    for name in ("linear_q_down_proj", "linear_kv_down_proj"):
        if (cut := getattr(attention, name, None)) is not None:
            degree: int = config.tensor_model_parallel_size  # type: ignore[attr-defined]
            rows, columns = cut.weight.shape
            full = WholeMatrix(rows * degree, columns, like=cut.weight)
            full.weight.sequence_parallel = degree > 1  # type: ignore[attr-defined]
            setattr(attention, name, full)
