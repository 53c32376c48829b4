"""The model families that the decoders compute: each translates its Hugging Face config.json.

`loading` and the rollout engines call this. A family raises UnsupportedArchitecture for what it cannot
compute, so that `loading` can fall back to the transformers library.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

from rljob_api.model.architecture import SEQUENCE_SCORER, TOKEN_SCORER
from rljob_api.model.vision import language_part
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import CAUSAL, CONDITIONAL, Architecture
from rljob_runtime.models.config import Config, UnsupportedArchitecture
from rljob_runtime.models.families import (
    deepseek_v2,
    deepseek_v3,
    llama,
    mistral,
    qwen2,
    qwen2_5_vl,
    qwen3,
    qwen3_moe,
    qwen3_vl,
)
from rljob_runtime.models.rope import write_rope


class FamilyModule(Protocol):
    """The interface of a family's module."""

    MODEL_TYPE: str

    def read(self, config: Config) -> Architecture:
        """Return the architecture. Raises UnsupportedArchitecture for a switch that is not implemented."""
        ...

    def write(self, architecture: Architecture) -> dict[str, object]:
        """Return the entries of config.json that other families do not have."""
        ...


FAMILIES: dict[str, FamilyModule] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "DeepseekV3ForCausalLM": deepseek_v3,
}
VISION_FAMILIES: dict[str, Callable[[Config], Architecture]] = {
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vl.read,
    "Qwen3VLForConditionalGeneration": qwen3_vl.read,
}
"""Models with a vision tower in addition to the decoder. Their config.json is never written from scratch."""

ONE_LABEL: dict[str, object] = {
    "num_labels": 1,
    "id2label": {"0": "LABEL_0"},
    "label2id": {"LABEL_0": 0},
}


def read_architecture(entries: Mapping[str, object]) -> Architecture:
    """Return the architecture of a config.json; classifiers of sequences and of tokens are scorers.

    A vision-language model returns the architecture of its decoder. Raises UnsupportedArchitecture if the
    decoders do not implement it, ConfigError for a classifier with several labels.
    """
    names = entries.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    supported = [*FAMILIES, *VISION_FAMILIES]
    causal_name = _causal(name)
    if causal_name not in supported:
        raise UnsupportedArchitecture(
            f"architecture {name or 'unnamed'} is not one of {', '.join(supported)}"
        )
    config = Config(name, language_part(entries))
    config.require("hidden_act", "silu")
    if config.get("quantization_config") is not None:
        raise UnsupportedArchitecture(f"quantized weights are not computed here ({name})")
    read = (
        VISION_FAMILIES[causal_name]
        if causal_name in VISION_FAMILIES
        else FAMILIES[causal_name].read
    )
    architecture = read(config)
    if causal_name == name:
        return architecture
    _check_labels(entries, name)
    return replace(architecture, tied=False, scores=True, score_bias=name.endswith(TOKEN_SCORER))


def hf_config(architecture: Architecture) -> dict[str, object]:
    """Return the config.json of an architecture, which transformers and vLLM can both read."""
    a, family = architecture, FAMILIES[_causal(architecture.name)]
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
        **(ONE_LABEL if a.scores else {}),
    }


def scorer_config(entries: Mapping[str, object], architecture: Architecture) -> dict[str, object]:
    """Return a model's config.json with a scalar head in place of its own. architecture: with the scalar
    head."""
    return {**entries, "architectures": [architecture.name], **ONE_LABEL}


def _causal(name: str) -> str:
    """Return the name of the same layers with a head of logits.

    transformers has no scorers with a vision tower; their names follow the same pattern.
    """
    for suffix in (SEQUENCE_SCORER, TOKEN_SCORER):
        if name.endswith(suffix):
            stem = name.removesuffix(suffix)
            conditional_name = stem + CONDITIONAL
            return conditional_name if conditional_name in VISION_FAMILIES else stem + CAUSAL
    return name


def _check_labels(entries: Mapping[str, object], name: str) -> None:
    """Raise ConfigError unless there is one label; transformers assumes two if config.json names none."""
    named = entries.get("id2label")
    labels = entries.get("num_labels") or (len(named) if isinstance(named, dict) else 2)
    if labels != 1:
        raise ConfigError(
            f"{name} has {labels} labels (id2label in config.json), and a critic or reward model has one "
            "score; train it with num_labels=1"
        )
