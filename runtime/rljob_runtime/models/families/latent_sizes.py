"""Read and write what DeepSeek-V2 and V3 share: latent attention and the sizes of their experts.

The modules of these families call this. Multi-token-prediction layers are left out.
"""

from typing import Any

from rljob_runtime.models.architecture import Architecture, LatentArchitecture, MoeArchitecture
from rljob_runtime.models.config import Config, UnsupportedArchitecture
from rljob_runtime.models.rope import read_rope, score_factor

QUERY_RANK = 1536  # if config.json has no entry, not even null


def read_latent(
    config: Config, *, experts: MoeArchitecture, interleaved: bool, mlp_bias: bool = False
) -> Architecture:
    """Return the architecture. Raises UnsupportedArchitecture if there are fewer key heads than heads."""
    num_heads = config.integer("num_attention_heads")
    config.require("num_key_value_heads", num_heads)
    rope = read_rope(config)
    rank = config.entries.get("q_lora_rank", QUERY_RANK)
    latent = LatentArchitecture(
        query_rank=config.integer("q_lora_rank", QUERY_RANK) if rank else None,
        kv_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        interleaved=interleaved,
        score_factor=score_factor(rope),
    )
    bias = config.flag("attention_bias")
    return Architecture(
        name=config.name,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        intermediate_size=config.integer("intermediate_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=latent.nope_dim + latent.rope_dim,
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=config.flag("tie_word_embeddings"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=mlp_bias,
        qk_norm=False,
        max_length=config.integer("max_position_embeddings", 2048),
        latent=latent,
        experts=experts,
    )


def read_latent_experts(config: Config, *, first_layer: int, **switches: Any) -> MoeArchitecture:
    """Return the experts; all layers from the first sparse one on have some.

    first_layer: the first sparse layer, if config.json does not give it. switches: the family's fields of
    `MoeArchitecture`.
    """
    config.require("moe_layer_freq", 1)
    first = config.get("first_k_dense_replace")
    first_layer = first if isinstance(first, int) else first_layer
    layers = tuple(range(first_layer, config.integer("num_hidden_layers")))
    if not layers:
        raise UnsupportedArchitecture(
            f"first_k_dense_replace={first} leaves no layer experts ({config.name})"
        )
    inner = config.integer("moe_intermediate_size")
    return MoeArchitecture(
        count=config.integer("n_routed_experts"),
        chosen=config.integer("num_experts_per_tok"),
        intermediate_size=inner,
        layers=layers,
        shared_intermediate=inner * config.integer("n_shared_experts"),
        scale=config.number("routed_scaling_factor", 1.0),
        **switches,
    )


def write_latent(architecture: Architecture) -> dict[str, object]:
    """Return the entries that both families have; num_nextn_predict_layers is 0, since none are written."""
    latent, experts = architecture.latent, architecture.experts
    assert latent is not None, "a DeepSeek model has latent attention"
    assert experts is not None, "a DeepSeek model is written with its experts"
    return {
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.kv_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
        "n_routed_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.intermediate_size,
        "n_shared_experts": experts.shared_intermediate // experts.intermediate_size,
        "first_k_dense_replace": experts.layers[0],
        "routed_scaling_factor": experts.scale,
        "n_group": experts.groups,
        "topk_group": experts.chosen_groups,
        "norm_topk_prob": experts.normalized,
        "num_nextn_predict_layers": 0,
    }
