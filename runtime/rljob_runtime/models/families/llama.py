"""Llama 2 and 3, and models of the same architecture (SmolLM2): optional biases, no norm of heads."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_windows, write_heads

MODEL_TYPE = "llama"


def read(config: Config) -> Architecture:
    """Return the architecture of a Llama config.json."""
    refuse_windows(config, window=config.get("sliding_window"))
    bias = config.flag("attention_bias")
    return read_heads(
        config,
        num_kv_heads=config.integer("num_attention_heads"),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to Llama."""
    return write_heads(architecture) | {"mlp_bias": architecture.mlp_bias}
