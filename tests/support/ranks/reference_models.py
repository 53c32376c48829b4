"""Small random models of every family, as transformers makes them: references for our own."""

import json
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.deepseek_v2 import DeepseekV2Config, DeepseekV2ForCausalLM
from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.mistral import MistralConfig, MistralForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_moe import Qwen3MoeConfig, Qwen3MoeForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 71,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
}
DEEPSEEK_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.9, "beta_fast": 16, "beta_slow": 2}
QWEN3_MOE = {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
}
DEEPSEEK: dict[str, Any] = {
    **(SIZES | {"num_key_value_heads": 4}),
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GROUPED = {"n_group": 4, "topk_group": 2}


def _llama(**more: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, **more))


def _qwen3_moe(**more: Any) -> Any:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SIZES | QWEN3_MOE | more)))


def _deepseek_v2(**more: Any) -> Any:
    return DeepseekV2ForCausalLM(DeepseekV2Config(**(DEEPSEEK | more)))


def _deepseek_v3(**more: Any) -> Any:
    return DeepseekV3ForCausalLM(DeepseekV3Config(**(DEEPSEEK | GROUPED | more)))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-tied": lambda: _llama(tie_word_embeddings=True),
    "llama-biased": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: _llama(head_dim=12),
    "llama-rope-llama3": lambda: _llama(rope_parameters=LLAMA3),
    "llama-rope-linear": lambda: _llama(rope_parameters=LINEAR),
    "llama-rope-dynamic": lambda: _llama(rope_parameters=DYNAMIC),
    "llama-rope-yarn": lambda: _llama(rope_parameters=YARN),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2-tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "qwen3-tied": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)
    ),
    "qwen3-rope-yarn": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, head_dim=16, rope_parameters=YARN | {"attention_factor": 1.1})
    ),
    "qwen3-moe": _qwen3_moe,
    "qwen3-moe-some-dense": lambda: _qwen3_moe(
        mlp_only_layers=[1], norm_topk_prob=False, tie_word_embeddings=True, attention_bias=True
    ),
    "qwen3-moe-odd-sizes": lambda: _qwen3_moe(moe_intermediate_size=7),
    "deepseek-v2": _deepseek_v2,
    "deepseek-v2-grouped": lambda: _deepseek_v2(
        topk_method="group_limited_greedy", **GROUPED, rope_parameters=DEEPSEEK_YARN
    ),
    "deepseek-v2-whole-queries": lambda: _deepseek_v2(
        q_lora_rank=None, attention_bias=True, mlp_bias=True
    ),
    "deepseek-v3": _deepseek_v3,
    "deepseek-v3-rope-yarn": lambda: _deepseek_v3(rope_parameters=DEEPSEEK_YARN),
    "deepseek-v3-halves": lambda: _deepseek_v3(
        rope_interleave=False, norm_topk_prob=False, q_lora_rank=None, attention_bias=True
    ),
}


DEEP: dict[str, Callable[[], Any]] = {
    "qwen3-deep-tied": lambda: Qwen3ForCausalLM(
        Qwen3Config(**(SIZES | {"num_hidden_layers": 5}), head_dim=16, tie_word_embeddings=True)
    ),
    "qwen3-moe-deep": lambda: _qwen3_moe(num_hidden_layers=5, mlp_only_layers=[0, 2]),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "llama-rope-longrope": lambda: _llama(rope_parameters=LONGROPE),
}


def make_reference(family: str, seed: int = 0) -> Any:
    """A transformers model whose every weight is random, norms and biases included."""
    torch.manual_seed(seed)
    model = (FAMILIES | DEEP | OTHERS)[family]().eval()
    model.config._experts_implementation = "eager"  # expert by expert: any width, no fused product
    with torch.no_grad():
        for name, weight in weights_of(model).items():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def weights_of(reference: Any) -> dict[str, torch.Tensor]:
    """The model's parameters and stored buffers by name; tied ones once."""
    stored = reference.state_dict().keys()
    buffers = ((name, held) for name, held in reference.named_buffers() if name in stored)
    return dict(reference.named_parameters()) | dict(buffers)


def config_of(reference: Any) -> dict[str, Any]:
    """What config.json of the model says."""
    config: dict[str, Any] = json.loads(reference.config.to_json_string(use_diff=False))
    return {**config, "architectures": [type(reference).__name__]}
