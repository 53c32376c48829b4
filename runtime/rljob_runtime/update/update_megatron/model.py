"""A decoder whose layers are Megatron Core's, and whose ends and attention are this project's.

Called by `engine`. Tokens lie packed as in `models.decoder`, and log-probs never need all logits.
"""

# U packed tokens of this context rank, S of one tensor rank, H hidden, V ids of this tensor rank

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.packed_attention import Attend, attend
from rljob_runtime.models.blocks.rotary import cos_and_sin
from rljob_runtime.models.ends import Ends, WholeEnds
from rljob_runtime.models.packing import Packing, pack
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.parallel.decoder.context_attention import RingAttention, UlyssesAttention
from rljob_runtime.parallel.decoder.tokens import is_ring
from rljob_runtime.parallel.decoder.vocabulary_ends import SharedEnds
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_megatron.core import Core
from rljob_runtime.update.update_megatron.layers import CoreAttention, CoreNorm, Pass
from rljob_runtime.update.update_megatron.weights import is_cut


def check_architecture(architecture: Architecture, tensor: int) -> None:
    """Raise ConfigError for what is not translated, and for degrees that Megatron's layers cannot have."""
    experts = architecture.experts
    lacking = {
        "latent attention": architecture.latent is not None,
        "biases of o_proj": architecture.output_bias,
        "biases of the feed-forward": architecture.mlp_bias,
        "an expert for all tokens": experts is not None and experts.shared_intermediate > 0,
        "groups of experts": experts is not None and experts.groups > 1,
        "a balance loss of its router": experts is not None and experts.balance_coefficient > 0,
        "a router of sigmoids": experts is not None and experts.scores != "softmax",
        "scaled weights of experts": experts is not None and experts.scale != 1.0,
    }
    if found := [what for what, has in lacking.items() if has]:
        raise ConfigError(
            f"spec.update.engine megatron does not train {architecture.name}, which has "
            f"{', '.join(found)} (config.json); use update.engine: torch"
        )
    for what, number in (
        ("num_key_value_heads", architecture.num_kv_heads),
        ("intermediate_size", architecture.intermediate_size),
        ("moe_intermediate_size", experts.intermediate_size if experts else 0),
    ):
        if number % tensor:
            raise ConfigError(
                f"spec.update.parallelism.tensor is {tensor}, which does not divide {what}={number} "
                f"(config.json); engine megatron needs that, engine torch does not"
            )


def config_of(
    core: Core,
    architecture: Architecture,
    degrees: UpdateDegrees,
    *,
    dtype: torch.dtype,
    recompute: bool,
) -> object:
    """Megatron's TransformerConfig. Gradients are sums: `calculate_per_token_loss` keeps it from means."""
    more: dict[str, object] = {}
    if recompute:
        more |= {
            "recompute_granularity": "full",
            "recompute_method": "uniform",
            "recompute_num_layers": 1,
        }
    if (experts := architecture.experts) is not None:
        more |= {
            "num_moe_experts": experts.count,
            "moe_router_topk": experts.chosen,
            "moe_ffn_hidden_size": experts.intermediate_size,
            "moe_router_pre_softmax": not experts.normalized,
            "moe_router_load_balancing_type": "none",
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": "alltoall",
            "expert_model_parallel_size": degrees.expert,
            "expert_tensor_parallel_size": degrees.tensor,
        }
    return core.TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        ffn_hidden_size=architecture.intermediate_size,
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=architecture.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        persist_layer_norm=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        use_cpu_initialization=True,
        perform_initialization=False,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        calculate_per_token_loss=True,
        tensor_model_parallel_size=degrees.tensor,
        sequence_parallel=degrees.tensor > 1,
        context_parallel_size=degrees.context,
        **more,
    )


class CoreDecoder(nn.Module):
    """The rank's part of a decoder, its weights not set yet. config: of `config_of`; Megatron looks for it
    here. groups: None for one rank."""

    def __init__(
        self,
        core: Core,
        config: object,
        architecture: Architecture,
        groups: ProcessGroups | None,
        *,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config, self.architecture = config, architecture
        self._pass = Pass(attend=_attention(groups), scale=architecture.score_scale)
        self._ends: Ends = WholeEnds()
        rows = architecture.vocab_size
        if groups is not None:
            self._ends = ends = SharedEnds(architecture.vocab_size, groups)
            rows = len(ends.held.ids)
        size = rows, architecture.hidden_size
        self.embedding = nn.Parameter(torch.empty(size, dtype=dtype))
        if not architecture.tied:
            self.head = nn.Parameter(torch.empty(size, dtype=dtype))
        layers = [self._layer_spec(core, layer) for layer in range(architecture.num_layers)]
        submodules = core.TransformerBlockSubmodules(layer_specs=layers, layer_norm=CoreNorm)
        self.decoder = core.TransformerBlock(config=config, spec=submodules)
        for name, module in self.named_modules():
            if name.endswith(".mlp.router"):
                module.register_forward_hook(self._pass.count)
        for name, parameter in self.named_parameters():
            if is_cut(name):  # else the norm of the gradient has the first tensor rank's alone
                parameter.tensor_model_parallel = True  # type: ignore[attr-defined]

    def forward(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool
    ) -> TokenLogprobs:
        """Log-probs of the batch's response tokens, float32 [T]. batch: with a token at least."""
        packing, experts = pack(batch, device=self.embedding.device), self.architecture.experts
        self.architecture.check_length(packing.longest)
        shared = self._ends.share(packing)
        load = self._ends.router_load(experts, packing) if experts else None
        self._pass.packing, self._pass.rotation = shared, self._rotation(shared)
        self._pass.load = load
        hidden_SH = self._ends.embed(shared, self.embedding)
        hidden_SH = self.decoder(hidden_states=hidden_SH[:, None], attention_mask=None)[:, 0]
        self._pass.load = None
        found = self._ends.logprobs(
            hidden_SH,
            self.embedding if self.architecture.tied else self.head,
            packing,
            temperature=temperature,
            with_entropy=with_entropy,
        )
        return replace(found, router_load=load)

    def _layer_spec(self, core: Core, layer: int) -> object:
        """Megatron's, with this project's norms and attention."""
        experts = self.architecture.experts_in(layer)
        spec = core.get_gpt_layer_local_spec(
            num_experts=experts.count if experts else None,
            moe_grouped_gemm=False,
            qk_layernorm=self.architecture.qk_norm,
            normalization="RMSNorm",
        )
        of = spec.submodules  # type: ignore[attr-defined]
        of.input_layernorm = of.pre_mlp_layernorm = CoreNorm
        attention = of.self_attention.submodules
        attention.core_attention = CoreAttention.for_pass(self._pass)
        if self.architecture.qk_norm:
            attention.q_layernorm = attention.k_layernorm = CoreNorm
        return spec

    def _rotation(self, packing: Packing) -> tuple[Tensor, Tensor]:
        cos, sin = cos_and_sin(self.architecture, packing.positions_U, self.embedding.dtype)
        return cos[:, None], sin[:, None]


def _attention(groups: ProcessGroups | None) -> Attend:
    if groups is None:
        return attend
    ring = is_ring(groups.grid.degrees)
    return (RingAttention if ring else UlyssesAttention)(groups[Purpose.CONTEXT])
