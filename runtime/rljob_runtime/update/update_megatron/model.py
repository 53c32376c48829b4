"""A decoder with Megatron Core's layers, and this project's ends and attention.

`engine` calls this. Tokens are packed, log-probs never need all logits, and a pipeline's passes are those of
`parallel.decoder.pipeline_passes`, as with the engine `torch`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture, MoeArchitecture
from rljob_runtime.models.blocks.packed_attention import Attend, attend
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.decoder.context_attention import RingAttention, UlyssesAttention
from rljob_runtime.parallel.decoder.parameters import cut_parameters, keep_stages, local_slices
from rljob_runtime.parallel.decoder.policy import share_ends, share_layers
from rljob_runtime.parallel.decoder.tokens import is_ring
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.update.update_megatron.core import Core
from rljob_runtime.update.update_megatron.layers import CoreLayer
from rljob_runtime.update.update_megatron.weights import ENDS, hold, is_cut, tensors_of


def check_architecture(architecture: Architecture) -> None:
    """Raise ConfigError for features that Megatron's layers do not support here."""
    latent, experts = architecture.latent, architecture.experts
    lacking = {
        "biases of o_proj": architecture.output_bias,
        "biases of the feed-forward": architecture.mlp_bias,
        "biases of latent attention": latent is not None and architecture.qkv_bias,
    } | (_lacking_routes(experts) if experts else {})
    if unsupported := [feature for feature, has in lacking.items() if has]:
        raise ConfigError(
            f"spec.update.engine megatron does not train {architecture.name}, which has "
            f"{', '.join(unsupported)} (config.json); use update.engine: torch"
        )


def _lacking_routes(experts: MoeArchitecture) -> dict[str, bool]:
    """Return the router features that Megatron computes differently, and whether the model has them."""
    sigmoid, counted = experts.scores == "sigmoid", 1 if experts.group_score == "best" else 2
    return {
        "sigmoids of a router whose weights do not add up to 1": sigmoid
        and (not experts.normalized or experts.chosen == 1),
        "a softmax over groups of experts whose weights add up to 1": not sigmoid
        and experts.groups > 1
        and experts.normalized,
        f"groups of experts scored by their {experts.group_score}": experts.groups > 1
        and counted != experts.chosen // experts.chosen_groups,
    }


def config_of(
    core: Core, architecture: Architecture, degrees: UpdateDegrees, *, dtype: torch.dtype
) -> object:
    """Create Megatron's TransformerConfig. Gradients are sums: `calculate_per_token_loss` prevents means."""
    config_class, settings = core.TransformerConfig, dict[str, object]()
    if (experts := architecture.experts) is not None:
        settings |= _config_of_experts(experts, degrees)
    if (latent := architecture.latent) is not None:
        config_class = core.MLATransformerConfig
        settings |= {
            "multi_latent_attention": True,
            "q_lora_rank": latent.query_rank,
            "kv_lora_rank": latent.kv_rank,
            "qk_head_dim": latent.nope_dim,
            "qk_pos_emb_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            "rope_type": "rope",  # as in this project's rotation
        }
    return config_class(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        ffn_hidden_size=architecture.intermediate_size,
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=architecture.qk_norm or latent is not None,
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
        **settings,
    )


def _config_of_experts(experts: MoeArchitecture, degrees: UpdateDegrees) -> dict[str, object]:
    grouped = experts.groups > 1
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.chosen,
        "moe_ffn_hidden_size": experts.intermediate_size,
        "moe_shared_expert_intermediate_size": experts.shared_intermediate or None,
        "moe_router_score_function": experts.scores,
        "moe_router_pre_softmax": not experts.normalized,
        "moe_router_num_groups": experts.groups if grouped else None,
        "moe_router_group_topk": experts.chosen_groups if grouped else None,
        "moe_router_topk_scaling_factor": experts.scale if experts.scale != 1.0 else None,
        "moe_router_enable_expert_bias": experts.correction_bias,
        "moe_router_bias_update_rate": 0.0,  # the model's biases do not change, as with the engine torch
        "moe_router_load_balancing_type": "none",
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": "alltoall",
        "expert_model_parallel_size": degrees.expert,
        "expert_tensor_parallel_size": expert_tensor(degrees),
    }


def expert_tensor(degrees: UpdateDegrees) -> int:
    """Return how many ranks share an expert's matrices: the tensor degree, unless experts are distributed."""
    return degrees.tensor if degrees.expert == 1 else 1


class CoreDecoder(Decoder):
    """A decoder that Megatron trains. loaded: the loaded policy, whose weights are views of this decoder's.

    Megatron reads `config`, and the other members if a pipeline's ends share an embedding.
    """

    config: object
    loaded: list[Decoder]
    pre_process = True

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of the loaded policy."""
        return self.loaded[0].named_hf_parameters()

    def hold(self, prefix: str = "", *, filled: bool = True) -> None:
        """Make the loaded policy's tensors with this name prefix views of Megatron's; see `weights.hold`."""
        megatron_tensors, loaded_tensors = (
            {
                name: tensor
                for name, tensor in tensors_of(decoder).items()
                if name.startswith(prefix)
            }
            for decoder in (self, self.loaded[0])
        )
        latent = self.architecture.latent is not None
        hold(megatron_tensors, loaded_tensors, latent=latent, filled=filled)

    @property
    def share_embeddings_and_output_weights(self) -> bool:
        """Return whether the first and the last pipeline stage share one matrix."""
        return self.architecture.tied

    def shared_embedding_or_output_weight(self) -> nn.Parameter:
        """Return the matrix that the pipeline's ends share."""
        return self.model.embed_tokens.weight


def core_decoder(
    core: Core,
    config: object,
    architecture: Architecture,
    loaded: PolicyModel,
    *,
    shape: Shape | None,
    groups: ProcessGroups | None,
    dtype: torch.dtype,
    recompute: bool,
) -> CoreDecoder:
    """Create the rank's shard of a decoder, whose weights the policy `loaded` then has as views.

    groups: None for one rank; otherwise the contract needs the model's shape.
    """
    assert isinstance(loaded, Decoder), "what Megatron trains was loaded as a decoder"
    with torch.device("meta"):
        decoder = CoreDecoder(architecture, dtype=dtype)
    decoder.text_ids = loaded.text_ids
    decoder.config, decoder.loaded = config, [loaded]  # in a list, so that it is not a submodule
    layers, backbone = decoder.model.layers, decoder.model
    device = next(weight.device for _, weight in loaded.named_hf_parameters())
    local_layers = list(range(architecture.num_layers))
    if groups is not None:
        assert shape is not None, f"the contract lacks {architecture.name}"
        shard = groups.grid.partition(shape, groups.rank)
        keep_stages(decoder, shard)
        local_layers = [index for index in local_layers if index in shard.layers]
    for index in range(architecture.num_layers):
        layers[index] = nn.Identity()
    if groups is None or shape is None:
        decoder.to_empty(device=device)
    else:
        cut_parameters(decoder, local_slices(shape, groups.grid, groups.rank), device=device)
        share_ends(decoder, groups)
        share_layers(decoder, groups)
        if shard.last and backbone.norm is not None:
            shared = groups.grid.degrees.tensor > 1
            backbone.norm.weight.sequence_parallel = shared  # type: ignore[attr-defined]
        if shard.last and not shard.first and architecture.tied:
            backbone.embed_tokens.weight.shared = True  # type: ignore[attr-defined]
    for end in ENDS:
        decoder.hold(end, filled=False)
    attention = _attention(groups)
    for index in local_layers:
        with device:
            layers[index] = CoreLayer(
                core, config, architecture, index, attend=attention, recompute=recompute
            )
        decoder.hold(f"model.layers.{index}.", filled=False)  # at most one layer is in memory twice
    for name, parameter in decoder.named_parameters():
        if is_cut(name):  # else the gradient's norm would include only the first tensor rank's
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    return decoder


def _attention(groups: ProcessGroups | None) -> Attend:
    if groups is None:
        return attend
    ring = is_ring(groups.grid.degrees)
    return (RingAttention if ring else UlyssesAttention)(groups[Purpose.CONTEXT])
