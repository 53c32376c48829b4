"""A decoder whose layers are Megatron Core's, and whose ends and attention are this project's.

Called by `engine`. Tokens lie packed, log-probs never need all logits, and a pipeline's passes are those of
`parallel.decoder.pipeline_passes`, as with the engine `torch`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.packed_attention import Attend, attend
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.decoder.context_attention import RingAttention, UlyssesAttention
from rljob_runtime.parallel.decoder.parameters import cut_parameters, held_slices, keep_stages
from rljob_runtime.parallel.decoder.policy import share_ends, share_layers
from rljob_runtime.parallel.decoder.tokens import is_ring
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.update.update_megatron.core import Core
from rljob_runtime.update.update_megatron.layers import CoreLayer
from rljob_runtime.update.update_megatron.weights import is_cut


def check_architecture(architecture: Architecture, degrees: UpdateDegrees) -> None:
    """Raise ConfigError for what is not translated, and for degrees that Megatron's layers cannot have."""
    experts, tensor = architecture.experts, degrees.tensor
    if degrees.expert > 1 and tensor > 1:
        raise ConfigError(
            f"spec.update.parallelism: expert is {degrees.expert} and tensor {tensor}; engine megatron "
            "shares experts by one of them"
        )
    lacking = {
        "latent attention": architecture.latent is not None,
        "biases of o_proj": architecture.output_bias,
        "biases of the feed-forward": architecture.mlp_bias,
        "an expert for all tokens": experts is not None and experts.shared_intermediate > 0,
        "groups of experts": experts is not None and experts.groups > 1,
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
    core: Core, architecture: Architecture, degrees: UpdateDegrees, *, dtype: torch.dtype
) -> object:
    """Megatron's TransformerConfig. Gradients are sums: `calculate_per_token_loss` keeps it from means."""
    more: dict[str, object] = {}
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


class CoreDecoder(Decoder):
    """A decoder that Megatron trains. held: the policy's weights where rollout and checkpoints look for them.

    Megatron looks for `config`, and where a pipeline's ends share an embedding for the rest.
    """

    config: object
    held: list[PolicyModel]
    pre_process = True

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Those that are held."""
        return self.held[0].named_hf_parameters()

    @property
    def share_embeddings_and_output_weights(self) -> bool:
        """Whether the first and the last pipeline stage have one matrix."""
        return self.architecture.tied

    def shared_embedding_or_output_weight(self) -> nn.Parameter:
        """It."""
        return self.model.embed_tokens.weight


def core_decoder(
    core: Core,
    config: object,
    architecture: Architecture,
    held: PolicyModel,
    *,
    shape: Shape | None,
    groups: ProcessGroups | None,
    dtype: torch.dtype,
    recompute: bool,
) -> CoreDecoder:
    """The rank's part of a decoder, its weights not set yet. groups: None for one rank; else the contract has
    the shape of the model."""
    with torch.device("meta"):
        decoder = CoreDecoder(architecture, dtype=dtype)
    decoder.config, decoder.held = config, [held]  # in a list, so that it is no part of this module
    layers, backbone = decoder.model.layers, decoder.model
    device = next(weight.device for _, weight in held.named_hf_parameters())
    own = list(range(architecture.num_layers))
    if groups is not None:
        assert shape is not None, f"the contract lacks {architecture.name}"
        part = groups.grid.part(shape, groups.rank)
        keep_stages(decoder, part)
        own = [index for index in own if index in part.layers]
    for index in range(architecture.num_layers):
        layers[index] = nn.Identity()
    if groups is None or shape is None:
        decoder.to_empty(device=device)
    else:
        cut_parameters(decoder, held_slices(shape, groups.grid, groups.rank))
        decoder.to(device)
        share_ends(decoder, groups)
        share_layers(decoder, groups)
        if part.last and backbone.norm is not None:
            shared = groups.grid.degrees.tensor > 1
            backbone.norm.weight.sequence_parallel = shared  # type: ignore[attr-defined]
        if part.last and not part.first and architecture.tied:
            backbone.embed_tokens.weight.shared = True  # type: ignore[attr-defined]
    attention = _attention(groups)
    with device:
        for index in own:
            layers[index] = CoreLayer(
                core, config, architecture, index, attend=attention, recompute=recompute
            )
    for name, parameter in decoder.named_parameters():
        if is_cut(name):  # else the norm of the gradient has the first tensor rank's alone
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    return decoder


def _attention(groups: ProcessGroups | None) -> Attend:
    if groups is None:
        return attend
    ring = is_ring(groups.grid.degrees)
    return (RingAttention if ring else UlyssesAttention)(groups[Purpose.CONTEXT])
