"""The shape of a dense decoder, read from a Hugging Face config.json.

Called by `loading` and the rollout engine. What the decoder cannot compute exactly is refused here
by name, so that `loading` can fall back to the transformers library.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError

# Architecture -> (q/k/v bias, q/k norm); None where the config's `attention_bias` decides.
FAMILIES: dict[str, tuple[bool | None, bool]] = {
    "LlamaForCausalLM": (None, False),
    "MistralForCausalLM": (False, False),
    "Qwen2ForCausalLM": (True, False),
    "Qwen3ForCausalLM": (None, True),
}


class UnsupportedArchitecture(ConfigError):
    """The decoder cannot compute this model; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embedding. factor and the rest are used by the scaled kinds only."""

    kind: Literal["default", "linear", "llama3"] = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_length: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and switches of a dense decoder (Llama, Mistral, Qwen2, Qwen3)."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope: Rope
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_length: int

    @property
    def repeats(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads


def read_config(path: Path) -> dict[str, object]:
    """The directory's config.json. Raises ConfigError when it is missing or not a JSON object."""
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"{path} holds no config.json; name a Hugging Face model directory"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{file} is not a JSON object; copy the model directory again")
    return config


def read_architecture(config: Mapping[str, object]) -> Architecture:
    """Architecture of a config.json. Raises UnsupportedArchitecture when the decoder lacks it."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name not in FAMILIES:
        raise UnsupportedArchitecture(
            f"architecture {name or 'unnamed'} is not one of {', '.join(FAMILIES)}"
        )
    _refuse_unknown(name, config)
    qkv_bias, qk_norm = FAMILIES[name]
    attention_bias = bool(config.get("attention_bias", False))
    num_heads = _integer(config, "num_attention_heads")
    hidden_size = _integer(config, "hidden_size")
    head_dim = config.get("head_dim") or (128 if qk_norm else hidden_size // num_heads)
    assert isinstance(head_dim, int)
    epsilon = config.get("rms_norm_eps", 1e-6)
    assert isinstance(epsilon, float | int)
    return Architecture(
        name=name,
        vocab_size=_integer(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_integer(config, "intermediate_size"),
        num_layers=_integer(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(name, config, num_heads),
        head_dim=head_dim,
        norm_epsilon=float(epsilon),
        rope=_read_rope(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias if qkv_bias is None else qkv_bias,
        output_bias=attention_bias if qkv_bias is None else False,
        mlp_bias=name == "LlamaForCausalLM" and bool(config.get("mlp_bias", False)),
        qk_norm=qk_norm,
        max_length=_integer({"max_position_embeddings": 2048, **config}, "max_position_embeddings"),
    )


def hf_config(architecture: Architecture) -> dict[str, object]:
    """The config.json of an architecture, which transformers and vLLM read alike."""
    a = architecture
    rope: dict[str, object] = {"rope_type": a.rope.kind, "rope_theta": a.rope.theta}
    if a.rope.kind != "default":
        rope["factor"] = a.rope.factor
    if a.rope.kind == "llama3":
        rope |= {
            "low_freq_factor": a.rope.low_frequency_factor,
            "high_freq_factor": a.rope.high_frequency_factor,
            "original_max_position_embeddings": a.rope.original_length,
        }
    return {
        "architectures": [a.name],
        "model_type": a.name.removesuffix("ForCausalLM").lower(),
        "vocab_size": a.vocab_size,
        "hidden_size": a.hidden_size,
        "intermediate_size": a.intermediate_size,
        "num_hidden_layers": a.num_layers,
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
        "head_dim": a.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_epsilon,
        "max_position_embeddings": a.max_length,
        "rope_parameters": rope,
        "rope_theta": a.rope.theta,
        "tie_word_embeddings": a.tied,
        "attention_bias": a.output_bias,
        "mlp_bias": a.mlp_bias,
        "sliding_window": None,
        "use_sliding_window": False,
    }


def inverse_frequencies(head_dim: int, rope: Rope) -> Tensor:
    """Rotation per position of each pair of a head, float32 [head_dim / 2], radians.

    The llama3 kind stretches long wavelengths and blends between (Llama 3.1 model card).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factor
    wavelength = 2 * math.pi / plain
    low = rope.original_length / rope.low_frequency_factor
    high = rope.original_length / rope.high_frequency_factor
    blend = (rope.original_length / wavelength - rope.low_frequency_factor) / (
        rope.high_frequency_factor - rope.low_frequency_factor
    )
    blended = (1 - blend) * plain / rope.factor + blend * plain
    stretched = torch.where(wavelength > low, plain / rope.factor, plain)
    between = (wavelength <= low) & (wavelength >= high)
    return torch.where(between, blended, stretched)


def _refuse_unknown(name: str, config: Mapping[str, object]) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedArchitecture(f"hidden_act={config['hidden_act']} is not silu ({name})")
    layers = config.get("layer_types")
    window = config.get("sliding_window", 4096 if name == "MistralForCausalLM" else None)
    if name.startswith("Qwen") and not config.get("use_sliding_window", False):
        window = None
    if window is not None or (isinstance(layers, list) and set(layers) - {"full_attention"}):
        raise UnsupportedArchitecture(f"sliding_window={window} is not computed here ({name})")
    if config.get("quantization_config") is not None:
        raise UnsupportedArchitecture(f"quantized weights are not computed here ({name})")


def _read_rope(config: Mapping[str, object]) -> Rope:
    """Rope of either spelling: `rope_parameters` (transformers 5) or `rope_scaling` with theta."""
    entry = config.get("rope_parameters") or config.get("rope_scaling") or {}
    assert isinstance(entry, dict)
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedArchitecture(f"rope_type={kind} is not one of default, linear, llama3")
    if entry.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedArchitecture("partial_rotary_factor is not 1")
    theta = entry.get("rope_theta", config.get("rope_theta", 10000.0))
    assert isinstance(theta, float | int)
    return Rope(
        kind=kind,
        theta=float(theta),
        factor=float(entry.get("factor", 1.0)),
        low_frequency_factor=float(entry.get("low_freq_factor", 1.0)),
        high_frequency_factor=float(entry.get("high_freq_factor", 4.0)),
        original_length=int(entry.get("original_max_position_embeddings", 8192)),
    )


def _num_kv_heads(name: str, config: Mapping[str, object], num_heads: int) -> int:
    if config.get("num_key_value_heads") is None:
        if name != "LlamaForCausalLM":
            raise UnsupportedArchitecture(f"num_key_value_heads is not given ({name})")
        return num_heads
    num_kv_heads = _integer(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise ConfigError(
            f"num_key_value_heads={num_kv_heads} does not divide num_attention_heads={num_heads} "
            "(config.json)"
        )
    return num_kv_heads


def _integer(config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key}={value!r} in config.json is not a positive integer")
    return value
