"""Qwen3-MoE: Qwen3 with experts by softmax, no shared expert, and dense layers where config.json lists
them."""

from rljob_runtime.models.architecture import Architecture, MoeArchitecture
from rljob_runtime.models.config import Config, UnsupportedArchitecture
from rljob_runtime.models.families.head_sizes import read_heads, refuse_qwen_windows, write_heads

MODEL_TYPE = "qwen3_moe"


def read(config: Config) -> Architecture:
    """Return the architecture of a Qwen3-MoE config.json."""
    refuse_qwen_windows(config)
    bias = config.flag("attention_bias")
    return read_heads(
        config, qkv_bias=bias, output_bias=bias, qk_norm=True, experts=_read_experts(config)
    )


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to Qwen3-MoE."""
    experts = architecture.experts
    assert experts is not None, "a Qwen3-MoE model has experts"
    dense = [layer for layer in range(architecture.num_layers) if layer not in experts.layers]
    return write_heads(architecture) | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.chosen,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.normalized,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "output_router_logits": experts.balance_coefficient > 0,
        "router_aux_loss_coef": experts.balance_coefficient,
    }


def _read_experts(config: Config) -> MoeArchitecture:
    """Read the experts; like transformers, use a load-balancing loss if `output_router_logits` is set."""
    step, dense = config.integer("decoder_sparse_step", 1), config.integers("mlp_only_layers")
    layers = tuple(
        layer
        for layer in range(config.integer("num_hidden_layers"))
        if layer not in dense and (layer + 1) % step == 0
    )
    if not layers:
        raise UnsupportedArchitecture(f"mlp_only_layers leaves no layer experts ({config.name})")
    written = "num_experts" if config.get("num_experts") else "num_local_experts"
    balanced = config.flag("output_router_logits")
    return MoeArchitecture(
        count=config.integer(written),
        chosen=config.integer("num_experts_per_tok"),
        intermediate_size=config.integer("moe_intermediate_size"),
        layers=layers,
        normalized=config.flag("norm_topk_prob"),
        balance_coefficient=config.number("router_aux_loss_coef", 0.001) if balanced else 0.0,
    )
