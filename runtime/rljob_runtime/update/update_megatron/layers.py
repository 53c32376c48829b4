"""One of Megatron Core's layers in the place of a decoder's own, with this project's norms, attention, SwiGLU
and products of experts.

`attention` has what stands in it for Megatron's attention, `experts` for its experts; `model` puts layers
into a decoder.
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
from rljob_runtime.models.recompute import recomputed_counting
from rljob_runtime.update.update_megatron.attention import (
    CoreHeads,
    CoreLatent,
    Now,
    WholeMatrix,
    attending,
)
from rljob_runtime.update.update_megatron.core import Core
from rljob_runtime.update.update_megatron.experts import CoreExperts


@dataclass(slots=True, kw_only=True)
class Counted:
    """What a router's choices are added to, while a layer computes. load: None: to nothing."""

    sigmoid: bool
    load: RouterLoad | None = None

    def count(
        self, router: nn.Module, given: tuple[Tensor, ...], found: tuple[Tensor, ...]
    ) -> None:
        """A hook of Megatron's router: [S, 1, H] → weights and choices, [S, E] each."""
        weights_SE, chosen_SE = found[:2]
        experts_SK = chosen_SE.nonzero()[:, 1].view(len(chosen_SE), -1)
        logits_SE = router.gating(given[0]).float().flatten(0, -2)  # type: ignore[operator]
        scores_SE = logits_SE.sigmoid() if self.sigmoid else logits_SE.softmax(-1)
        routes = Routes(
            experts_UK=experts_SK,
            weights_UK=weights_SE.gather(1, experts_SK),
            probabilities_UE=scores_SE / scores_SE.sum(-1, keepdim=True)
            if self.sigmoid
            else scores_SE,
        )
        if self.load is not None:  # computed all the same: a recomputed layer does the same twice
            self.load.add(routes)


class CoreLayer(nn.Module):
    """A decoder's layer. config: Megatron's. recompute: keep the input alone."""

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
        self._now = Now(core=core, architecture=architecture, attend=attend)
        self._dispatcher: Any = None
        experts = architecture.experts_in(index)
        self._counted = Counted(sigmoid=experts is not None and experts.scores == "sigmoid")
        spec = core.get_gpt_layer_local_spec(
            num_experts=experts.count if experts else None,
            moe_grouped_gemm=False,
            qk_layernorm=architecture.qk_norm or architecture.latent is not None,
            multi_latent_attention=architecture.latent is not None,
            normalization="RMSNorm",
        )
        of = spec.submodules  # type: ignore[attr-defined]
        of.input_layernorm = of.pre_mlp_layernorm = CoreNorm
        self._replace_attention(of.self_attention)
        if experts is not None:
            of.mlp.submodules.experts = CoreExperts
        self.of_core = core.TransformerLayer(config=config, submodules=of, layer_number=index + 1)
        if architecture.latent is not None:
            _repeat_narrow(self.of_core.self_attention, config)  # type: ignore[arg-type]
        _fuse(self.of_core.mlp)  # type: ignore[arg-type]
        if experts is not None:
            self.of_core.mlp.router.register_forward_hook(self._counted.count)  # type: ignore
            self._dispatcher = self.of_core.mlp.token_dispatcher  # type: ignore[union-attr]

    def forward(
        self,
        hidden_SH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        """[S, H] -> [S, H]."""
        if not self._recompute:
            return self._run(hidden_SH, packing, rotation, load)
        return recomputed_counting(self._run, hidden_SH, packing, rotation, once=load)

    def _run(
        self,
        hidden_SH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        now, counted = self._now, self._counted
        now.packing, now.rotation, counted.load = packing, rotation, load
        try:
            output: Tensor = self.of_core(hidden_states=hidden_SH[:, None], attention_mask=None)[0]
            return output[:, 0]
        finally:  # a layer that is computed again ends with an exception, once it has what is needed
            now.packing = now.rotation = counted.load = None
            if self._dispatcher is not None:  # would keep all that its weights are made of
                self._dispatcher.probs = None

    def _replace_attention(self, spec: object) -> None:
        latent = self._now.architecture.latent is not None
        of = spec.submodules  # type: ignore[attr-defined]
        of.core_attention = nn.Identity
        spec.module = attending(  # type: ignore[attr-defined]
            CoreLatent if latent else CoreHeads,
            spec.module,  # type: ignore[attr-defined]
            self._now,
        )
        if latent:
            of.q_layernorm = of.kv_layernorm = LatentNorm
        elif self._now.architecture.qk_norm:
            of.q_layernorm = of.k_layernorm = CoreNorm


class CoreNorm(nn.Module):
    """Root-mean-square norm. Where tokens are shared among tensor ranks, Megatron adds up what each found."""

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
        """Same shape and dtype as x."""
        return rms_norm(x, self.weight, self.epsilon)


class LatentNorm(CoreNorm):
    """Of compressed vectors."""

    def __init__(self, config: object, hidden_size: int, **others: object) -> None:
        super().__init__(config, hidden_size, eps=LATENT_EPSILON)


class CoreFeedForward:
    """Stands before Megatron's class of feed-forwards, whose matrices it has: gate and up meet in this
    project's operation, where Megatron has three of torch's, and one of its own on a GPU alone."""

    linear_fc1: Any
    linear_fc2: Any

    def forward(self, hidden_states: Tensor, *others: None, **more: None) -> tuple[Tensor, None]:
        """[S, 1, H] → [S, 1, H], and no bias."""
        output: tuple[Tensor, None] = self.linear_fc2(swiglu(self.linear_fc1(hidden_states)[0]))
        return output


def _fuse(feed_forward: nn.Module) -> None:
    """Change the class of a layer's feed-forward, or of the shared expert beside its experts. Megatron looks
    at the class as it makes it, so that it is changed afterwards."""
    if not hasattr(feed_forward, "router"):
        feed_forward.__class__ = type("CoreFeedForward", (CoreFeedForward, type(feed_forward)), {})
    elif (shared := getattr(feed_forward, "shared_experts", None)) is not None:
        plain = type("CoreFeedForward", (CoreFeedForward, type(shared).__mro__[1]), {})
        shared.__class__ = type("CoreSharedExpert", (type(shared), plain), {})


def _repeat_narrow(attention: nn.Module, config: object) -> None:
    """Each tensor rank has the whole of the matrices that make narrow vectors, which Megatron would cut."""
    for name in ("linear_q_down_proj", "linear_kv_down_proj"):
        if (cut := getattr(attention, name, None)) is not None:
            degree: int = config.tensor_model_parallel_size  # type: ignore[attr-defined]
            rows, columns = cut.weight.shape
            whole = WholeMatrix(rows * degree, columns, like=cut.weight)
            whole.weight.sequence_parallel = degree > 1  # type: ignore[attr-defined]
            setattr(attention, name, whole)
