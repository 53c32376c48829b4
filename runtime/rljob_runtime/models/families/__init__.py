"""The families of models that the decoders compute: each translates its Hugging Face config.json.

Called by `loading` and the rollout engines. What a family does not know is refused by name, so that
`loading` can fall back to the transformers library.
"""

from collections.abc import Mapping
from typing import Protocol

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config, UnsupportedArchitecture
from rljob_runtime.models.families import (
    deepseek_v2,
    deepseek_v3,
    llama,
    mistral,
    qwen2,
    qwen3,
    qwen3_moe,
)
from rljob_runtime.models.rope import write_rope


class Family(Protocol):
    """The module of one family."""

    MODEL_TYPE: str

    def read(self, config: Config) -> Architecture:
        """The architecture. Raises UnsupportedArchitecture for a switch that is not computed."""
        ...

    def write(self, architecture: Architecture) -> dict[str, object]:
        """The entries of config.json that other families do not have."""
        ...


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
}


def read_architecture(entries: Mapping[str, object]) -> Architecture:
    """Architecture of a config.json. Raises UnsupportedArchitecture when the decoders lack it."""
    names = entries.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name not in FAMILIES:
        raise UnsupportedArchitecture(
            f"architecture {name or 'unnamed'} is not one of {', '.join(FAMILIES)}"
        )
    config = Config(name, entries)
    config.require("hidden_act", "silu")
    if config.get("quantization_config") is not None:
        raise UnsupportedArchitecture(f"quantized weights are not computed here ({name})")
    return FAMILIES[name].read(config)


def hf_config(architecture: Architecture) -> dict[str, object]:
    """The config.json of an architecture, which transformers and vLLM read alike."""
    a, family = architecture, FAMILIES[architecture.name]
    return {
        "architectures": [a.name],
        "model_type": family.MODEL_TYPE,
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "intermediate_size": a.intermediate_size,
        "num_hidden_layers": a.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_epsilon,
        "max_position_embeddings": a.max_length,
        "rope_parameters": write_rope(a.rope),
        "rope_theta": a.rope.theta,
        "tie_word_embeddings": a.tied,
        "attention_bias": a.output_bias,
        **family.write(a),
    }
