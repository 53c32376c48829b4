"""Small random models of every family, as transformers makes them: references for our own."""

import json
from collections.abc import Callable
from typing import Any

import torch
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.mistral import MistralConfig, MistralForCausalLM
from transformers.models.qwen2 import Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM

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


def _llama(**more: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(**SIZES, **more))


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "llama-tied": lambda: _llama(tie_word_embeddings=True),
    "llama-biased": lambda: _llama(attention_bias=True, mlp_bias=True),
    "llama-wide-heads": lambda: _llama(head_dim=12),
    "llama-rope-llama3": lambda: _llama(rope_parameters=LLAMA3),
    "llama-rope-linear": lambda: _llama(rope_parameters=LINEAR),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2-tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16)),
    "qwen3-tied": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)
    ),
}


OTHERS: dict[str, Callable[[], Any]] = {
    "llama-rope-dynamic": lambda: _llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ),
}


def make_reference(family: str, seed: int = 0) -> Any:
    """A transformers model whose every parameter is random, norms and biases included."""
    torch.manual_seed(seed)
    model = (FAMILIES | OTHERS)[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    return model


def config_of(reference: Any) -> dict[str, Any]:
    """What config.json of the model says."""
    config: dict[str, Any] = json.loads(reference.config.to_json_string(use_diff=False))
    return {**config, "architectures": [type(reference).__name__]}
