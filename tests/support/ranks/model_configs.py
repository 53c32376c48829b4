"""Small configurations of every family of models that the contract knows."""

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
MOE: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "head_dim": 24,
}
LATENT: dict[str, Any] = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1,
}  # fmt: skip

CONFIGS: list[dict[str, Any]] = [
    {"model_type": "llama", "tie_word_embeddings": True},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "head_dim": 24},
    {"model_type": "mistral", "head_dim": 24},
    {"model_type": "qwen2"},
    {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    {"model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    {"model_type": "qwen3_moe", **MOE},
    {"model_type": "qwen3_moe", **MOE, "mlp_only_layers": [0], "decoder_sparse_step": 2},
    {"model_type": "qwen3"},
    {"model_type": "deepseek_v2", **LATENT},
    {"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None, "first_k_dense_replace": 0},
    {"model_type": "deepseek_v2", **LATENT, "attention_bias": True, "mlp_bias": True},
    {"model_type": "deepseek_v3", **LATENT},
    {"model_type": "deepseek_v3", **LATENT, "attention_bias": True},
    {"model_type": "deepseek_v3", **LATENT, "q_lora_rank": None},
]
