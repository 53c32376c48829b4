"""One of Megatron Core's layers in the place of a decoder's own, with this project's norms and attention.

Attention is over packed samples, each prompt computed once for all of its own, on any context ranks; rotation
is by each token's position in its sample. `model` puts layers into a decoder.
"""

# U packed tokens of this context rank, S of one tensor rank, A query heads, N key/value heads of this tensor
# rank, D width of each, H hidden, E experts, K experts of a token

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.packed_attention import Attend
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing
from rljob_runtime.models.recompute import recomputed_counting
from rljob_runtime.update.update_megatron.core import Core


@dataclass(slots=True, kw_only=True)
class Pass:
    """What a layer's parts need beside hidden states, while it computes. rotation: cos and sin, [U, 1, D / 2]
    each. load: what its router does is counted there; None: not."""

    attend: Attend
    scale: float
    packing: Packing | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    load: RouterLoad | None = None

    def count(
        self, router: nn.Module, given: tuple[Tensor, ...], found: tuple[Tensor, ...]
    ) -> None:
        """A hook of Megatron's router: [S, 1, H] → weights and choices, [S, E] each."""
        weights_SE, chosen_SE = found[:2]
        experts_SK = chosen_SE.nonzero()[:, 1].view(len(chosen_SE), -1)
        logits = router.gating(given[0])  # type: ignore[operator]
        routes = Routes(
            experts_UK=experts_SK,
            weights_UK=weights_SE.gather(1, experts_SK),
            probabilities_UE=logits.float().flatten(0, -2).softmax(-1),
        )
        if (
            self.load is not None
        ):  # computed all the same: a layer that is recomputed does the same twice
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
        self._pass = Pass(attend=attend, scale=architecture.score_scale)
        experts = architecture.experts_in(index)
        spec = core.get_gpt_layer_local_spec(
            num_experts=experts.count if experts else None,
            moe_grouped_gemm=False,
            qk_layernorm=architecture.qk_norm,
            normalization="RMSNorm",
        )
        of = spec.submodules  # type: ignore[attr-defined]
        of.input_layernorm = of.pre_mlp_layernorm = CoreNorm
        attention = of.self_attention.submodules
        attention.core_attention = CoreAttention.for_pass(self._pass)
        if architecture.qk_norm:
            attention.q_layernorm = attention.k_layernorm = CoreNorm
        self.of_core = core.TransformerLayer(config=config, submodules=of, layer_number=index + 1)
        if experts is not None:
            self.of_core.mlp.router.register_forward_hook(self._pass.count)  # type: ignore

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
        now = self._pass
        now.packing, now.rotation, now.load = packing, rotation, load
        output: Tensor = self.of_core(hidden_states=hidden_SH[:, None], attention_mask=None)[0]
        now.packing = now.rotation = now.load = None
        return output[:, 0]


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


class CoreAttention(nn.Module):
    """Attention of packed tokens. `for_pass` makes the class of one layer's."""

    current: Pass

    def __init__(self, config: object, *arguments: object, **others: object) -> None:
        super().__init__()

    @classmethod
    def for_pass(cls, current: Pass) -> type["CoreAttention"]:
        """Megatron makes its layers from classes."""
        return type("CoreAttention", (cls,), {"current": current})

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *arguments: object, **others: object
    ) -> Tensor:
        """[U, 1, A, D], [U, 1, N, D] twice → [U, 1, A D]."""
        of = self.current
        assert of.packing is not None and of.rotation is not None, "a layer outside of a pass"
        query_UAD = rotate(query.squeeze(1), *of.rotation)
        key_UND = rotate(key.squeeze(1), *of.rotation)
        mixed_UX = of.attend(query_UAD, key_UND, value.squeeze(1), of.packing, scale=of.scale)
        return mixed_UX[:, None]
